"""The time of a whole run: start-up and then every item, on both sides."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.judging.bill import broken_limit
from gpugate.measurement.derived import with_whole_run
from gpugate.measurement.record import SideCost
from gpugate.report.gains import whole_runs
from gpugate.report.markdown import results_page
from gpugate.report.screen import details
from gpugate.report.terminal import render_text
from gpugate.report.view import view_run
from gpugate.results.case import CaseResult
from gpugate.workload import Limit, Size
from tests.support.stored_runs import case, measured, stored

CLIP = Size(8, 1, 1, whole_run_items=600)  # 75 steps of 10 ms, or of 30; start-up has taken one of them


def with_start_up(name: str, optimized: SideCost, reference: SideCost) -> CaseResult:
    found = measured(f"tiny/{name}/cuda", 3.0, spread=0.0, optimized_cost=optimized, reference_cost=reference)
    return case(name, measurement=found, size=CLIP)


def test_start_up_and_every_item_count_on_both_sides(tmp_path: Path) -> None:
    run = stored(tmp_path / "run.json", with_start_up("quick", SideCost(0.5, 0.25), SideCost(0.1, 0.15)))
    (line,) = whole_runs(run)  # 0.75 + 74 * 0.01 = 1.49 s instead of 0.25 + 74 * 0.03 = 2.47 s
    assert line == "tiny/quick: 600 items in 1.5 s instead of 2.5 s, 1.66x; start-up 0.8 s and 0.2 s"
    assert f"start-up included\n  {line}\n" in render_text(details(view_run(run), 200), 200, colour=False)
    assert f"- {line}" in results_page(view_run(run))


def test_a_run_without_an_end_and_what_was_not_measured_have_no_line(tmp_path: Path) -> None:
    endless, skipped = case("endless"), case("skipped", None, skipped="it needs a GPU", size=CLIP)
    run = stored(tmp_path / "run.json", endless, skipped)
    assert whole_runs(run) == []
    assert "start-up included" not in render_text(details(view_run(run), 200), 200, colour=False)
    measuring = replace(skipped, skipped=None, error="tiny/skipped/cuda: skipped failed")
    assert whole_runs(stored(tmp_path / "other.json", measuring)) == []


def test_a_contract_may_hold_a_side_to_the_speedup_of_a_whole_run() -> None:
    found = with_start_up("quick", SideCost(0.5, 0.25), SideCost(0.1, 0.15)).measurement
    assert found is not None
    counted = replace(found, optimized_counters={"kernels": 3.0})
    counters = with_whole_run(counted, CLIP).optimized_counters
    assert counters == {"kernels": 3.0, "whole_run_speedup": pytest.approx(2.47 / 1.49)}
    assert broken_limit(Limit("whole_run_speedup", at_least=1.6), counters, {}) is None
    broken = broken_limit(Limit("whole_run_speedup", at_least=1.7), counters, {})
    assert broken is not None
    found = {"counter": "whole_run_speedup", "value": pytest.approx(2.47 / 1.49), "side": "below", "limit": 1.7}
    assert broken.facts == found


def test_only_a_counted_side_of_a_run_with_an_end_has_it() -> None:
    found = with_start_up("quick", SideCost(0.5, 0.25), SideCost(0.1, 0.15)).measurement
    assert found is not None
    counted = replace(found, optimized_counters={"kernels": 3.0})
    uncounted = replace(found, optimized_counters={})
    assert with_whole_run(uncounted, CLIP) == uncounted
    assert with_whole_run(counted, replace(CLIP, whole_run_items=None)) == counted
    assert with_whole_run(replace(counted, instances=()), CLIP) == replace(counted, instances=())

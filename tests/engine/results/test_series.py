"""Rungs multiply, a missing one breaks the product, and a sweep's knee is the smallest value that is good enough."""

import math
from dataclasses import replace

import pytest

from gpugate.judging.knee import judge_knee
from gpugate.report.tables import series_tables
from gpugate.results.case import CaseResult, Confirmation
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.series import Ladder, find_knee, ladders, rung_number, sweeps
from gpugate.results.summary import summarize
from gpugate.results.verdict import Outcome
from gpugate.statistics.intervals import Estimate
from gpugate.workload import BASELINE, Optimization, Point, Side, Size, Workload
from tests.support.stored_runs import MACHINE, RECORDED, STARTED, case, measured


def rung(name: str, below: str, number: int, gain: float) -> CaseResult:
    found = measured(f"tiny/{name}/cuda", gain, optimized_ms=10.0)
    made = case(name, measurement=found, compared_with=below, rung=number, size=Size(512, 1, 1))
    assert made.measurement is not None
    return replace(made, summary=summarize(made.measurement))


def three_rungs() -> dict[str, CaseResult]:
    rungs = rung("pinned", "workers", 2, 1.5), rung("workers", BASELINE, 1, 2.0), rung("fp16", "pinned", 3, 1.2)
    return {one.case_id: one for one in rungs}


def only(found: list[Ladder]) -> Ladder:
    assert len(found) == 1
    return found[0]


def test_a_ladder_stands_on_the_baseline_and_multiplies_its_gains() -> None:
    ladder = only(ladders(three_rungs()))
    assert [one.name for one in ladder.rungs] == ["baseline", "workers", "pinned", "fp16"]
    gains = [one.gain.median for one in ladder.rungs[1:] if one.gain]
    assert gains == pytest.approx([2.0, 1.5, 1.2], rel=1e-3)
    totals = [one.total for one in ladder.rungs]
    assert [one.median for one in totals if one] == pytest.approx([1.0, 2.0, 3.0, 3.6], rel=1e-3)
    assert [one.items_per_s for one in ladder.rungs] == pytest.approx([25_600, 51_200, 51_200, 51_200], rel=1e-2)


def test_a_rung_that_was_confirmed_is_that_of_the_process_that_decides() -> None:
    cases = three_rungs()
    confirmed = cases["tiny/workers/cuda"]
    fresh = [rung("workers", BASELINE, 1, gain).measurement for gain in (2.2, 2.1)]
    confirmed.attempts = [Confirmation(measurement) for measurement in fresh]
    first = only(ladders(cases)).rungs[1]
    assert first.gain is not None
    assert first.gain.median == pytest.approx(2.1, rel=1e-3), "the middle one of 2.0, 2.2 and 2.1"


def test_the_interval_of_a_total_is_wider_than_that_of_each_gain_and_narrower_than_their_sum() -> None:
    def width(one: Estimate | None) -> float:
        assert one is not None
        return math.log(one.high / one.low)

    ladder = only(ladders(three_rungs()))
    gains = [width(one.gain) for one in ladder.rungs[1:]]
    assert max(gains) < width(ladder.rungs[-1].total) < sum(gains)


def test_above_a_rung_that_was_not_measured_nothing_is_known_of_the_bottom() -> None:
    cases = three_rungs()
    cases["tiny/pinned/cuda"] = replace(cases["tiny/pinned/cuda"], measurement=None, summary=None, skipped="no")
    ladder = only(ladders(cases))
    assert [one.name for one in ladder.rungs] == ["baseline", "workers", "fp16"]
    assert [one.total is None for one in ladder.rungs] == [False, False, True]


def build(context: object) -> Side:
    raise AssertionError


def test_what_is_compared_with_another_side_than_the_rung_before_is_no_rung() -> None:
    compared = {"workers": BASELINE, "alone": BASELINE, "pinned": "workers", "all": BASELINE}
    optimizations = tuple(Optimization(name, build, {"cuda": 1.0}, compared_with=to) for name, to in compared.items())
    workload = Workload("net", build, lambda context, index: None, {"cuda": Size(1, 1, 1)}, optimizations, ladder=True)
    assert [rung_number(workload, name) for name in compared] == [1, None, 2, None]
    assert rung_number(replace(workload, ladder=False), "workers") is None


def point(value: int, speedup: float | None, recorded: float | None = 3.0, **changed: object) -> CaseResult:
    history = RECORDED.current
    remembered = None if recorded is None else replace(RECORDED, current=replace(history, speedup=recorded))
    made = case(f"batch-{value}", speedup, point=Point("batch", value), remembered=remembered, **changed)
    return replace(made, summary=summarize(made.measurement)) if made.measurement else made


def swept(*points: CaseResult) -> dict[str, CaseResult]:
    return {one.case_id: one for one in points}


@pytest.mark.parametrize(
    ("throughputs", "expected"),
    [
        ({8: 1.0, 16: 1.96, 32: 2.0}, 16),
        ({8: 1.0, 16: 1.93, 32: 2.0}, 32),
        ({8: 2.0, 16: 1.0}, 8),
        ({64: 2.0, 8: 1.95, 32: 1.0}, 8),
        ({8: 1.0}, None),
        ({}, None),
    ],
)
def test_the_knee_is_the_smallest_value_within_three_percent_of_the_best(throughputs, expected) -> None:
    assert find_knee(throughputs) == expected


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        ((1.0, 2.0, 2.01, 2.02), Outcome.PASS),
        ((1.0, 1.5, 2.0, 2.01), Outcome.PASS),
        ((1.0, 1.5, 1.7, 2.0), Outcome.REGRESSED),
        ((2.0, 2.0, 2.0, 2.0), Outcome.PASS),
    ],
)
def test_a_knee_may_move_to_a_neighbour_and_no_further(now, outcome) -> None:
    recorded = dict(zip((8, 16, 32, 64), (1.0, 2.0, 2.01, 2.02), strict=True))
    speedups = dict(zip(recorded, now, strict=True))
    found = sweeps(swept(*(point(value, speedups[value], recorded[value]) for value in (64, 8, 32, 16))))
    verdict = judge_knee(found[0])
    assert (verdict.outcome, verdict.check, verdict.case_id) == (outcome, "knee", "tiny/batch/cuda")
    assert verdict.code is ReasonCode.KNEE


def test_a_point_without_memory_is_a_result_and_the_sweep_goes_on() -> None:
    points = swept(point(8, 1.0, 1.0), point(16, 2.0, 2.0), point(32, None, None, skipped="out of memory"))
    found = sweeps(points)[0]
    assert (found.knee, found.recorded_knee) == (16, 16)
    assert judge_knee(found).outcome is Outcome.PASS
    run = RunResult(MACHINE, STARTED, seed=1, cases=points)
    assert series_tables(run)[0].rows[-1] == ("32", "", "out of memory")


def test_a_sweep_of_which_every_point_was_skipped_is_no_table() -> None:
    points = swept(*(point(value, None, None, skipped="needs a CUDA GPU") for value in (8, 16)))
    assert len(sweeps(points)) == 1
    assert series_tables(RunResult(MACHINE, STARTED, seed=1, cases=points)) == []


def test_a_knee_needs_two_points_and_a_record_of_all_of_them() -> None:
    alone = sweeps(swept(point(8, 1.0), point(16, None, skipped="needs a CUDA GPU")))[0]
    assert judge_knee(alone).outcome is Outcome.UNDECIDED
    assert judge_knee(alone).reasons == (Reason(ReasonCode.NOTHING_MEASURED, {"problem": "needs a CUDA GPU"}),)
    fresh = sweeps(swept(point(8, 1.0), point(16, 2.0, recorded=None)))[0]
    assert judge_knee(fresh).outcome is Outcome.NO_BASELINE
    assert {judge_knee(alone).check, judge_knee(fresh).check} == {"knee"}

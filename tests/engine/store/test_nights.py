"""Nights from runs: what the store keeps of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.machine.environment import machine_key
from gpugate.measurement.record import SideCost
from gpugate.results.case import CaseResult, Confirmation
from gpugate.results.run import Provenance, RunResult, night_of
from gpugate.store.nights import find_newest, keep
from gpugate.store.run_file import RunFileError
from gpugate.units import round_stored
from tests.conftest import H200, TWO_CORES
from tests.support.stored_runs import MACHINE, STARTED, measured, timed

CASE = "tiny/fused/cuda"


def run_of(*cases: CaseResult, **changed: Any) -> RunResult:
    return replace(RunResult(MACHINE, STARTED, 7, cases={case.case_id: case for case in cases}), **changed)


def metrics_of(case: CaseResult) -> dict[str, tuple[float, ...]]:
    (found,) = night_of(run_of(case)).cases.values()
    return dict(found.metrics)


def test_the_metrics_of_a_case() -> None:
    case = timed("fused", 3.0)
    assert case.measurement is not None
    slower = measured(CASE, 2.9)  # of two processes, the slower one decides
    further = Confirmation(replace(slower, wall_s=4.0))
    case = replace(
        case,
        measurement=replace(
            case.measurement,
            optimized_cost=SideCost(1.5, 0.5, peak_bytes=4096),
            wall_s=8.5,
        ),
        attempts=[further, Confirmation(None, "it ended with status 3")],
    )
    medians = {name: getattr(case.summarize(slower), name) for name in ("speedup", "optimized_ms", "reference_ms")}
    assert metrics_of(case) == {
        **{name: tuple(map(round_stored, (found.median, found.low, found.high))) for name, found in medians.items()},
        "recorded_speedup": (3.0,),
        "kernels": (57.0,),
        "kernel_launches": (1.0,),
        "graph_launches": (0.0,),
        "start_up_s": (2.0,),
        "peak_bytes": (4096.0,),
        "duration_s": (12.5,),
        "needs_host": (1.0,),
    }


@pytest.mark.parametrize(
    ("timer", "copies", "needs_host"),
    [
        ("cuda events", (0.0, 0.25), False),
        ("host clock", (0.0, 0.24), False),
        ("host clock", (0.25, 0.0), True),
        ("host clock", (0.0, 0.25), True),
    ],
)
def test_a_pipeline_that_copies_needs_its_host(timer: Any, copies: tuple[float, float], needs_host: bool) -> None:
    case = timed("fused", 3.0)
    assert case.measurement is not None
    reference, optimized = ({"copy_fraction": share} for share in copies)
    counted = replace(case.measurement, reference_counters=reference, optimized_counters=optimized)
    case.measurement = replace(counted, timer=timer)
    assert case.needs_host is needs_host
    assert ("needs_host" in metrics_of(case)) is needs_host


def test_two_runs_of_one_second_and_one_seed_are_both_kept(tmp_path: Path) -> None:
    run = run_of(timed("fused", 3.0))
    keep(replace(run, command="pytest perf_tests --perf-baselines=own --perf-set=video=own.mp4"), tmp_path)
    for _ in range(2):
        keep(run, tmp_path)
    (tmp_path / ".gpugate/runs/1.json").write_text("{")  # of an older gpugate, or cut off
    assert len(find_newest(tmp_path)) == 2
    (tmp_path / ".gpugate/runs/9.json").write_text("{")
    with pytest.raises(RunFileError, match=r"9\.json cannot be used"):
        find_newest(tmp_path)


def test_a_case_of_a_machine_that_was_not_well_has_no_metrics() -> None:
    skipped = replace(timed("skipped", 3.0), measurement=None, summary=None, skipped="needs a newer GPU")
    night = night_of(run_of(timed("a", 3.0), timed("b", 3.0, environment_problem="throttled"), skipped))
    assert (list(night.cases), night.unfit) == (["tiny/a/cuda"], ("tiny/b/cuda",))


def test_a_run_has_its_provenance_and_a_version() -> None:
    known = Provenance(commit="abc", branch="main")
    assert night_of(run_of(provenance=known)).provenance == known
    assert night_of(run_of(provenance=None)).version == "unknown"


def test_a_machine_is_its_product_its_memory_and_its_power_limit() -> None:
    run = run_of(environment=replace(H200, power_limit_w=700.0), memory_bytes=150_110_011_392)
    assert night_of(run).machine == "nvidia-h200-140-gib-700-w"
    h100 = replace(H200, device_name="NVIDIA H100 80GB HBM3", power_limit_w=500.0)
    assert machine_key(h100, 85 * 10**9) == "nvidia-h100-80gb-hbm3-79-gib-500-w"
    assert machine_key(replace(h100, power_limit_w=None), None) == "nvidia-h100-80gb-hbm3"
    assert machine_key(TWO_CORES, None) == "cpu-intel-xeon-8481c-2-cores"

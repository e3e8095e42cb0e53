"""The outcome of a duet by its processes, and the size that the noise of a record gives it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gpugate.judging.duet import judge_duet
from gpugate.measurement.record import Difference, Measurement, TimedBuild
from gpugate.results.duet import DuetOutcome, DuetProcess, plan_size
from tests.conftest import TWO_CORES
from tests.support.stored_runs import measurement, timed_build

SLOWER, FASTER, SAME, UNDECIDED = DuetOutcome
CASE = "tiny/quick/cpu"
SEED = 20261127


def measured(reference_ms: float, optimized_ms: float, l2: float = 0.0) -> Measurement:
    found = measurement(
        *[timed_build(reference_ms, optimized_ms, 8)] * 4, differences=(Difference(l2, l2, None, "fresh inputs"),)
    )
    return replace(found, reference_counters={"kernels": 3}, optimized_counters={"kernels": 4})


def process(measurement: Measurement, swapped: bool = False) -> DuetProcess:
    return DuetProcess(swapped, TWO_CORES, (CASE,), {CASE: measurement})


@pytest.mark.parametrize(
    ("heads_ms", "outcome", "processes"),
    [
        ((10.0,), SAME, 1),
        ((10.5, 10.5), UNDECIDED, 2),
        ((10.5, 10.5, 10.5), SLOWER, 3),
        ((9.5, 9.5, 9.5), FASTER, 3),
        ((10.5, 9.9, 10.5), UNDECIDED, 3),
    ],
)
def test_the_outcome_is_that_of_all_processes(heads_ms: Sequence[float], outcome: DuetOutcome, processes: int) -> None:
    found = judge_duet(CASE, [process(measured(10.0, head_ms)) for head_ms in heads_ms])
    assert (found.outcome, len(found.processes)) == (outcome, processes)


def test_the_ratio_is_that_of_the_head_in_both_orders() -> None:
    both = [process(measured(10.0, 10.5)), process(measured(10.5, 10.0), swapped=True)]
    found = judge_duet(CASE, [*both, both[0]])
    assert [one.median for one in (found.ratio, *found.processes)] == pytest.approx([1.05] * 4)


def test_a_duet_has_the_sides_of_both_versions_whichever_was_the_reference() -> None:
    for swapped in (False, True):
        found = judge_duet(CASE, [process(measured(10, 10, l2=1e-4), swapped)])
        assert (found.outcome, found.relative_l2) == (SAME, 1e-4)
        assert judge_duet(CASE, [process(replace(measured(10, 10), differences=()))]).relative_l2 == 0
        base, head = ({"kernels": 4}, {"kernels": 3}) if swapped else ({"kernels": 3}, {"kernels": 4})
        assert (found.base, found.head) == (base, head)


def test_a_time_of_the_bill_is_the_median_of_the_processes() -> None:
    taken = [
        process(replace(measured(10, 10), optimized_counters={"kernels": 4 + number, "kernel_ms": ms}))
        for number, ms in enumerate((8.0, 9.0, 8.2))
    ]
    assert judge_duet(CASE, taken).head == {"kernels": 4, "kernel_ms": 8.2}


def record(pair_sd: float, build_sd: float, step_ms: float = 2.0, processes: int = 5) -> list[list[TimedBuild]]:
    """Recorded processes of four builds, whose steps run in blocks of 5, with normal log-ratios."""
    draw = np.random.default_rng(SEED)

    def build(mean: float) -> TimedBuild:
        ratios = np.exp(mean + pair_sd * draw.standard_normal(16))
        return timed_build(step_ms * ratios, step_ms, 16, optimized_steps_per_block=5)

    return [[build(build_sd * draw.standard_normal()) for _ in range(4)] for _ in range(processes)]


@pytest.mark.parametrize(
    ("pair_sd", "build_sd", "step_ms", "pairs"),
    [
        (0.01, 0.0, 2.0, 8),
        (0.01, 0.05, 2.0, 8),  # the noise of pairs within builds
        (0.08, 0.0, 2.0, 25),  # as many pairs as their noise needs
        (0.08, 0.0, 100.0, 8),  # fewer where they are dear
        (0.5, 0.0, 20.0, 19),  # 15 s of pairs do not suffice
    ],
)
def test_a_process_has_as_many_pairs_as_their_noise_needs_within_its_budget(
    pair_sd: float, build_sd: float, step_ms: float, pairs: int
) -> None:
    found = plan_size(record(pair_sd, build_sd, step_ms, processes=40))
    assert found is not None
    assert (found.pairs, found.builds) == (pytest.approx(pairs, rel=0.1), 4)
    assert found.sampling_s == pytest.approx(found.pairs * 4 * 2 * 5 * step_ms / 1e3)
    assert plan_size([[timed_build(1.0, 1.0, 1)]]) is None

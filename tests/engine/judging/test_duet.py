"""The outcome of a duet: alarms need two processes and an interval beyond the floor, SAME a narrow one."""

import math
from dataclasses import replace

import pytest

from gpugate.judging.duet import (
    ALIKE,
    combine,
    judge_duet,
    judge_ratio,
    needs_process,
    time_ratio,
)
from gpugate.measurement.record import Difference, Measurement, Pair, SideCost, TimedBuild
from gpugate.results.duet import DuetOutcome, DuetProcess
from gpugate.statistics.intervals import BUILD_SPREAD, Estimate
from gpugate.statistics.policy import DUET_FLOOR
from tests.conftest import TWO_CORES

SLOWER, FASTER, SAME, UNDECIDED = DuetOutcome
CASE = "tiny/quick/cpu"


def measured(
    reference_ms: float, optimized_ms: float, l2: float = 0.0, build_s: float = 1.0, spread_ms: float = 0.0
) -> Measurement:
    pairs = tuple(Pair(reference_ms + number % 4 * spread_ms, optimized_ms, number % 2 == 0) for number in range(8))
    builds = tuple(TimedBuild(number % 2 == 0, pairs) for number in range(4))
    costs = SideCost(build_s, 0.0), SideCost(2 * build_s, 0.0)
    return Measurement(
        CASE, builds, "narrow", (Difference(l2, l2, None, "fresh inputs"),), *costs, {"kernels": 3}, {"kernels": 4}
    )


def process(measurement: Measurement, swapped: bool = False) -> DuetProcess:
    return DuetProcess(swapped, TWO_CORES, (CASE,), {CASE: measurement})


@pytest.mark.parametrize(
    ("low", "high", "processes", "outcome"),
    [
        (1.0101, 1.02, (1.02, 1.01), SLOWER),
        (1.0101, 1.02, (1.02,), UNDECIDED),
        (1.0101, 1.02, (1.02, 0.999), UNDECIDED),
        (1.0099, 1.02, (1.02, 1.01), SAME),
        (1.009, 1.031, (1.02, 1.01), UNDECIDED),
        (1 - ALIKE + 0.001, 1 + ALIKE, (1.0,), SAME),
        (1 / (1 + ALIKE) - 1e-6, 1.0, (1.0,), UNDECIDED),
        (0.98, 1 / (1 + DUET_FLOOR) - 1e-6, (0.98, 0.99), FASTER),
        (0.98, 1 / (1 + DUET_FLOOR) - 1e-6, (0.98,), UNDECIDED),
        (0.98, 1 / (1 + DUET_FLOOR) - 1e-6, (0.98, 1.001), UNDECIDED),
        (0.98, 1 / (1 + DUET_FLOOR) + 1e-6, (0.98, 0.99), SAME),
        (0.5, 2.0, (0.9, 1.0, 1.1), UNDECIDED),
    ],
)
def test_the_borders_of_each_outcome(
    low: float, high: float, processes: tuple[float, ...], outcome: DuetOutcome
) -> None:
    assert judge_ratio(Estimate(math.sqrt(low * high), low, high), processes, builds=8) is outcome


@pytest.mark.parametrize(("change", "outcome"), [(1.06, SLOWER), (1 / 1.06, FASTER)])
def test_a_change_that_too_few_builds_have_seen_is_not_decided(change: float, outcome: DuetOutcome) -> None:
    ratio = Estimate(change, change, change)
    assert judge_ratio(ratio, (change, change), builds=2) is UNDECIDED
    assert judge_ratio(ratio, (change, change), builds=3) is outcome
    compiled = process(spread(10.0 * change, 0.0))
    assert judge_duet(CASE, [compiled] * 2).outcome is UNDECIDED
    assert judge_duet(CASE, [compiled] * 3).outcome is outcome


@pytest.mark.parametrize(("change", "wanted"), [(1.0099, False), (1.0101, True), (1 / 1.0101, True), (1.2, True)])
def test_a_change_beyond_the_floor_gets_another_process_although_the_interval_is_within_alike(
    change: float, wanted: bool
) -> None:
    assert needs_process(judge_duet(CASE, [process(measured(10, 10 * change))])) is wanted


def test_the_ratio_is_that_of_the_head_in_both_orders() -> None:
    assert time_ratio(measured(10.0, 10.5), swapped=False).median == pytest.approx(1.05)
    assert time_ratio(measured(10.5, 10.0), swapped=True).median == pytest.approx(1.05)
    plain = time_ratio(measured(10.0, 10.5), swapped=False)
    assert plain.low <= plain.median <= plain.high


def spread(head_ms: float, *shifts: float) -> Measurement:
    """Builds whose ratios differ by the shifts, which are shares; the base takes 10 ms."""
    builds = [
        TimedBuild(number % 2 == 0, (Pair(10.0, head_ms * (1 + shift), True),) * 8)
        for number, shift in enumerate(shifts)
    ]
    return replace(measured(10.0, head_ms), instances=tuple(builds))


def test_the_builds_of_all_processes_are_one_sample() -> None:
    one = spread(10.5, -0.02, 0.02, 0.01, -0.01)
    alone, both = combine([(one, False)]), combine([(one, False), (one, False)])
    assert both.median == pytest.approx(1.05, rel=1e-3)
    # t(3) * s / sqrt(4) becomes t(7) * s / sqrt(8): less than half.
    assert math.log(both.high / both.low) < 0.5 * math.log(alone.high / alone.low)
    with pytest.raises(ValueError, match="no samples"):
        combine([])


FEW_ARE_OFF = [0.25, 0.25, -0.25, *[0.001, -0.001] * 6]


def test_a_few_builds_with_another_memory_do_not_hide_a_change_of_all_others() -> None:
    slower = [process(spread(10.5, *FEW_ARE_OFF)), process(spread(10.5, *FEW_ARE_OFF[::-1]))]
    duet = judge_duet(CASE, slower)
    assert duet.outcome is SLOWER
    assert 1.04 < duet.ratio.low <= duet.ratio.high < 1.06


def test_a_change_of_a_few_builds_is_not_the_same_speed() -> None:
    duet = judge_duet(CASE, [process(spread(10.0, *FEW_ARE_OFF)), process(spread(10.0, *FEW_ARE_OFF[::-1]))])
    assert duet.outcome is UNDECIDED
    assert duet.ratio.high > 1.05, "the interval of the mean has them"


def test_the_effect_of_the_order_of_building_is_removed_in_both_roles() -> None:
    """Building the base first makes the head 2 % slower, whichever role the head has."""
    plain = spread(10.5, 0.02, -0.02, 0.02, -0.02)
    pairs = [
        tuple(replace(pair, reference_ms=pair.optimized_ms, optimized_ms=pair.reference_ms) for pair in one.pairs)
        for one in plain.instances
    ]
    builds = [
        replace(one, pairs=exchanged, reference_built_first=not one.reference_built_first)
        for one, exchanged in zip(plain.instances, pairs, strict=True)
    ]
    found = combine([(plain, False), (replace(plain, instances=tuple(builds)), True)])
    assert found.median == pytest.approx(1.05, rel=1e-3)
    assert math.log(found.high / found.low) < 0.005


def test_a_chance_of_one_process_is_no_change() -> None:
    found = judge_duet(CASE, [process(measured(10, 10.6)), process(measured(10, 10.001), swapped=True)])
    assert found.outcome is UNDECIDED


def test_a_duet_has_the_sides_of_both_versions_whichever_was_the_reference() -> None:
    for swapped in (False, True):
        found = judge_duet(CASE, [process(measured(10, 10, l2=1e-4), swapped)])
        assert (found.outcome, found.relative_l2) == (SAME, 1e-4)
        base, head = ({"kernels": 4}, {"kernels": 3}) if swapped else ({"kernels": 3}, {"kernels": 4})
        assert (found.base.counters, found.head.counters) == (base, head)
        assert found.head.cost.build_s == (1.0 if swapped else 2.0)


def test_the_detectable_slowdown_grows_with_the_noise() -> None:
    quiet, noisy = (judge_duet(CASE, [process(measured(10, 10, spread_ms=spread))]) for spread in (0.0, 0.5))
    half = math.log(noisy.ratio.high / noisy.ratio.low) / 2
    # Four equal builds: BUILD_SPREAD is worth three further ones, and t(6) of the mean of four bounds it.
    of_builds = 3.143 * math.sqrt(3 / 6) * BUILD_SPREAD / 2
    assert quiet.detectable == pytest.approx((1 + DUET_FLOOR) * math.exp(2 * of_builds) - 1, rel=1e-3)
    assert noisy.detectable == pytest.approx((1 + DUET_FLOOR) * math.exp(2 * half) - 1)
    assert noisy.detectable > 0.03

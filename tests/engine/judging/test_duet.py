"""The outcome of a duet: alarms need two processes and an interval beyond the floor, SAME a narrow one."""

import math

import pytest

from gpugate.judging.duet import ALIKE, FLOOR, UNKNOWN_PROCESS_SPREAD, combine, judge_duet, judge_ratio, time_ratio
from gpugate.measurement.record import Difference, Measurement, Pair, SideCost, TimedBuild
from gpugate.results.duet import DuetOutcome, DuetProcess
from gpugate.statistics.intervals import Estimate
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
        (1.0101, 1.02, 2, SLOWER),
        (1.0101, 1.02, 1, UNDECIDED),
        (1.0099, 1.02, 2, SAME),
        (1.009, 1.031, 2, UNDECIDED),
        (1 - ALIKE + 0.001, 1 + ALIKE, 1, SAME),
        (1 / (1 + ALIKE) - 1e-6, 1.0, 1, UNDECIDED),
        (0.98, 1 / (1 + FLOOR) - 1e-6, 2, FASTER),
        (0.98, 1 / (1 + FLOOR) - 1e-6, 1, UNDECIDED),
        (0.98, 1 / (1 + FLOOR) + 1e-6, 2, SAME),
        (0.5, 2.0, 3, UNDECIDED),
    ],
)
def test_the_borders_of_each_outcome(low: float, high: float, processes: int, outcome: DuetOutcome) -> None:
    assert judge_ratio(Estimate(math.sqrt(low * high), low, high), processes) is outcome


def test_the_ratio_is_that_of_the_head_in_both_orders() -> None:
    assert time_ratio(measured(10.0, 10.5), swapped=False).median == pytest.approx(1.05)
    assert time_ratio(measured(10.5, 10.0), swapped=True).median == pytest.approx(1.05)
    plain = time_ratio(measured(10.0, 10.5), swapped=False)
    assert plain.low <= plain.median <= plain.high


def test_several_processes_narrow_the_interval_no_further_than_they_agree() -> None:
    one = Estimate(1.05, 1.02, 1.08)
    assert combine([one]) == one
    two = combine([one, one])
    assert two.median == pytest.approx(1.05)
    assert math.log(two.high / two.low) == pytest.approx(math.log(1.08 / 1.02) / math.sqrt(2))
    apart = combine([Estimate(1.05, 1.049, 1.051), Estimate(0.99, 0.989, 0.991)])
    assert (apart.low, apart.high) == (pytest.approx(0.99), pytest.approx(1.05))
    with pytest.raises(ValueError, match="no process"):
        combine([])


def test_pairs_of_processes_are_the_unit_where_each_version_has_its_own() -> None:
    narrow = [Estimate(ratio, ratio * 0.999, ratio * 1.001) for ratio in (1.05, 1.06, 1.055)]
    for few in (narrow[:1], narrow[:2]):
        found = combine(few, apart=True)
        assert math.log(found.high / found.low) == pytest.approx(2 * UNKNOWN_PROCESS_SPREAD)
    three = combine(narrow, apart=True)
    spread = math.log(1.06 / 1.05) / 2
    assert math.log(three.high / three.low) / 2 == pytest.approx(6.965 * spread / math.sqrt(3), rel=0.01)
    assert combine(narrow).low == pytest.approx(1.05), "in one process the ratios themselves are the interval"


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
    assert quiet.detectable == pytest.approx(FLOOR)
    assert noisy.detectable == pytest.approx((1 + FLOOR) * math.exp(2 * half) - 1)
    assert noisy.detectable > 0.03

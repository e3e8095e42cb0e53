"""From what happened to what it means, with numbers that can be checked by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from gpugate.results.summary import History, history, shrink_records, summarize
from gpugate.statistics.intervals import BUILD_SPREAD, CONFIDENCE, PRIOR_WORTH, Estimate, time_interval
from gpugate.statistics.variation import Control, Variation
from tests.support.stored_runs import measurement, timed_build

ALONE = math.exp(special.stdtrit(PRIOR_WORTH, CONFIDENCE) * BUILD_SPREAD)  # of a single build whose pairs agree


def test_a_speedup_is_reference_time_over_optimized_time_of_each_pair() -> None:
    # Both sides drift by a third: the pairs do not see it.
    found = summarize(measurement(timed_build([10, 11, 12, 13, 14, 15, 16, 17], [5, 5.5, 6, 6.5, 7, 7.5, 8, 8.5])))
    assert (found.speedup.low, found.speedup.median, found.speedup.high) == pytest.approx((2 / ALONE, 2, 2 * ALONE))
    assert found.reference_ms == time_interval(range(10, 18))
    assert found.optimized_ms.median == 6.75


def test_the_intervals_of_a_recorded_case_contain_what_its_processes_differed_by() -> None:
    recorded = History(2.0, 0.02, 2.0, 1.0, 0.001, 5)
    found = summarize(measurement(*[timed_build(2.0, 1.0, 8)] * 3), recorded)
    of_speedup, of_time = math.exp(3.7469 * 0.02), math.exp(3.7469 * 0.001)  # t(4) at 99 %
    assert (found.speedup.low, found.speedup.high) == pytest.approx((2 / of_speedup, 2 * of_speedup), rel=1e-4)
    assert (found.optimized_ms.low, found.optimized_ms.high) == pytest.approx((1 / of_time, of_time), rel=1e-4)
    young = summarize(measurement(timed_build(2.0, 1.0, 8)), replace(recorded, processes=2))
    assert young.speedup.low == pytest.approx(2 / ALONE)


def test_pairs_and_discards_are_counted_over_instances_that_have_any() -> None:
    found = summarize(
        measurement(timed_build(2, 1, 4, discarded=3), timed_build(2, 1, 0, discarded=2), timed_build(2, 1, 5))
    )
    assert (found.pairs, found.discarded, found.instances) == (9, 5, 2)


def test_a_history_is_the_median_over_processes_and_their_variation() -> None:
    processes = [[timed_build(2 * ms, ms, 8)] for ms in (9, 10, 11)]
    processes.append([timed_build(30, 10, 4), timed_build(30, 10, 4)])
    found = history(processes)
    assert found.speedup == pytest.approx(2)
    assert found.speedup_cv == pytest.approx(0.5 / 2.25)  # of 2, 2, 2 and 3
    assert (found.optimized_ms, found.reference_ms, found.processes) == (10, 21, 4)
    assert found.optimized_ms_cv == pytest.approx(math.sqrt(2 / 3) / 10)


def test_the_noise_of_pairs_is_the_standard_error_of_a_process() -> None:
    ratios = [2.0 * math.exp(0.1 * step) for step in (-3, -2, -1, 0, 0, 1, 2, 3)] * 2
    found = history([[timed_build(ratios, 1, 16)]] * 2)
    assert found.pair_noise == pytest.approx(0.15 / 0.6745 / 4, rel=1e-3)  # MAD 0.15, of 16 pairs


def test_variations_are_shrunk_over_the_records_of_a_machine() -> None:
    """Cases of 5 processes each; the variations of the first one are a third of what its pairs predict."""
    draw = np.random.default_rng(1)
    spreads = [0.003, *0.01 * np.sqrt(draw.chisquare(4, 40) / draw.chisquare(4, 40))]
    machine = [
        History(2.0, one, 2.0, 1.0, 0.01, 5, pair_noise=0.01, control=Control(0.5, Variation(one, 4.0)))
        for one in spreads
    ]
    quiet, *others = machine
    found, *_ = shrink_records(machine)
    assert quiet.variation == Variation(0.003, 4)
    assert found.control is not None
    assert found.variation is not None
    assert found.control.slope == 0.5
    for shrunk in (found.variation, found.control.variation):
        assert 0.003 < shrunk.share < 0.01
        assert shrunk.degrees_of_freedom == 4 + PRIOR_WORTH
    few = [replace(quiet, processes=2), replace(quiet, pair_noise=None)]
    assert shrink_records([*few, *others])[:2] == few
    assert shrink_records(machine[:9]) == machine[:9]  # too few records of a machine


def test_a_history_knows_how_much_of_a_time_its_reference_explains() -> None:
    """The sides of these processes slow alike, but for 0.1 %."""
    factors = (1.0, 1.1, 1.2, 1.3, 1.4)
    processes = [[timed_build(2 * one, one * (1 + 0.001 * (-1) ** index), 8)] for index, one in enumerate(factors)]
    found = history(processes)
    assert found.control is not None
    assert found.control.slope == pytest.approx(1.0, abs=0.01)
    assert 0.0005 < found.control.variation.share < 0.002
    assert found.wall == found.control
    assert replace(found, processes=2).wall is None
    older = replace(found, control=None)
    assert older.wall == Control(0.0, Variation(older.optimized_ms_cv or 0.0, 4))


def about(median: float, relative: float = 0.01) -> Estimate:
    return Estimate(median, median * (1 - relative), median * (1 + relative))

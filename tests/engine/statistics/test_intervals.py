"""Bounds are wrong as seldom as they say, on skewed numbers too, and honest where there are too few."""

import math

import numpy as np
import pytest

from gpugate.statistics.intervals import (
    BUILD_SPREAD,
    CONFIDENCE,
    Estimate,
    robust_spread,
    speedup_estimate,
    time_interval,
    widen,
)
from gpugate.statistics.variation import Variation

DRAWS = 2000
ALLOWED_TO_BE_WRONG = 0.015  # 1 %, and the luck of 2000 draws


@pytest.mark.parametrize("count", [7, 8, 20, 80])
def test_bounds_are_the_tightest_order_statistics_that_the_binomial_allows(count: int) -> None:
    at_most = [sum(math.comb(count, below) for below in range(index + 1)) / 2**count for index in range(count)]
    tightest = max(index for index in range(count) if at_most[index] <= 1 - CONFIDENCE)
    estimate = time_interval(range(count))
    assert (estimate.low, estimate.high) == (tightest, count - 1 - tightest)


def test_below_seven_samples_the_bounds_reach_beyond_the_extremes() -> None:
    assert time_interval([10.0, 20.0, 40.0]) == Estimate(20.0, 2.5, 160.0)  # times stay positive
    assert time_interval([5.0, 1, 4, 2, 3, 7, 6]) == Estimate(4, 1, 7)
    for estimate in (time_interval, lambda samples: speedup_estimate([samples])):
        with pytest.raises(ValueError, match="no samples"):
            estimate([])


@pytest.mark.parametrize(("builds", "t"), [(1, 6.9646), (2, 4.5407), (3, 3.7469)])
def test_builds_that_agree_have_the_interval_of_the_typical_difference_of_builds(builds: int, t: float) -> None:
    """t(1 + n) at 99 %, since the prediction is worth two builds; without its own part, the variance is 2 of 1 + n."""
    estimate = speedup_estimate([[0.5] * 20] * builds)
    half_width = t * BUILD_SPREAD * math.sqrt(2 / (1 + builds) / builds)
    bounds = math.log(estimate.low), math.log(estimate.median), math.log(estimate.high)
    assert bounds == pytest.approx((0.5 - half_width, 0.5, 0.5 + half_width), rel=1e-4)


def test_the_noise_of_pairs_widens_the_interval_of_builds_that_agree() -> None:
    noisy = [[0.4, 0.45, 0.5, 0.5, 0.5, 0.55, 0.6, 0.6, 0.4]]  # deviations of 0.05 in the middle, 0.0741 scaled
    predicted = math.hypot(BUILD_SPREAD, 0.05 / 0.67449 * math.sqrt(math.pi / 2 / 8))
    assert math.log(speedup_estimate(noisy).high) == pytest.approx(0.5 + 6.9646 * predicted, rel=1e-3)


def test_an_interval_covers_the_recorded_spread_between_processes() -> None:
    """Builds of a process that was recorded to differ from others by 0.1 or 2 %, known from five values."""
    quiet, loud = (Variation(share, 4).half_width for share in (0.001, 0.02))
    assert (quiet, loud) == pytest.approx((0.0037469, 0.074939), rel=1e-4)  # t(4) at 99 % is 3.7469
    apart = [[0.0] * 8, [0.1] * 8, [0.05] * 8]
    found = speedup_estimate(apart)
    assert widen(found, quiet) == found  # builds differ by more
    many = widen(speedup_estimate([[0.5] * 8] * 3), loud)  # builds are alike, and processes are not
    assert math.log(many.low) == pytest.approx(0.5 - loud)


@pytest.mark.parametrize("instances", [4, 12])
def test_a_bound_of_the_speedup_holds_when_fresh_instances_differ_more_than_pairs(instances: int) -> None:
    """0.5 % between instances, 0.1 % between pairs, as a launch-bound workload has it: pairs alone would mislead."""
    draw = np.random.default_rng(instances)
    offsets = draw.normal(0.0, 0.005, size=(DRAWS, instances, 1))
    estimates = [speedup_estimate(run) for run in (offsets + draw.normal(0, 0.001, (DRAWS, instances, 4))).tolist()]
    assert np.mean([estimate.low > 1 for estimate in estimates]) <= ALLOWED_TO_BE_WRONG
    assert np.mean([estimate.high < 1 for estimate in estimates]) <= ALLOWED_TO_BE_WRONG


def test_equal_sides_whose_first_built_one_is_slower_are_equal_by_builds_in_turn() -> None:
    """As measured on a GPU: who was built first was slower, every time."""
    in_percent = [-1.18, 2.06, -2.26, 2.34, -1.70, 1.92]
    found = speedup_estimate([[median / 100] * 4 for median in in_percent])
    assert math.log(found.median) == pytest.approx(0.0037)
    assert found.low < 1 < found.high
    assert found.half_width == pytest.approx(0.022, abs=0.001)


def test_the_robust_spread_is_the_standard_deviation_without_its_outliers() -> None:
    samples = np.random.default_rng(1).normal(0.0, 2.0, 4000)
    samples[:40] = 1000.0
    assert robust_spread(samples.tolist()) == pytest.approx(2.0, rel=0.1)
    assert robust_spread([3.0]) == 0.0

"""Medians and their confidence intervals. Pure statistics on sequences of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from statistics import median as median_of
from typing import NamedTuple

from scipy import special  # scipy.stats would take half a second more to import

from gpugate.units import Bound, Positive

CONFIDENCE = 0.99  # one-sided: a bound is wrong at most once in a hundred
# Measured difference between two identical sides over their whole life in one process, as a log-ratio: a tolerance is
# at least this.
UNKNOWN_BUILD_SPREAD = 0.01
# Typical difference between two identical builds, as a log-ratio: 0.03 to 1 % were measured. One round of pairs cannot
# estimate it.
BUILD_SPREAD = 0.003
# Builds, and processes, that a prediction of their variance from the noise of their pairs is worth. The records of an
# H200 and an H100 gave 1.3 and 1.4 for speedups, and 4.1 and 2.0 for times; trials of duets gave 1.9 to 4.4.
PRIOR_WORTH = 2


@dataclass(frozen=True)
class Estimate:
    """A median with its lower and upper bound, each at one-sided 99 %."""

    median: Positive
    low: Bound
    high: Bound

    @property
    def half_width(self) -> float:
        """Half the interval's width relative to the median: 0.005 is +-0.5 %."""
        return (self.high - self.low) / (2 * self.median) if self.median else math.inf


def time_interval(samples: Sequence[float]) -> Estimate:
    """Computes the median of times with a distribution-free interval from order statistics.

    The k-th smallest of n samples is a lower bound of the median at one-sided confidence
    1 - P(Binomial(n, 1/2) < k); the upper bound is its mirror image (Conover, Practical Nonparametric Statistics,
    3rd ed., 1999, section 3.2). With too few samples for that confidence (below seven at 99 %) the bounds are the
    extremes widened by their ratio, so that no false precision arises. Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples: a median needs at least one")
    ordered = sorted(map(float, samples))
    low, high = ordered[0], ordered[-1]
    if 0.5 ** len(ordered) > 1 - CONFIDENCE:
        return Estimate(median_of(ordered), low * low / high, high * high / low)
    below = math.floor(special.bdtrik(1 - CONFIDENCE, len(ordered), 0.5))  # the index of the lower bound
    return Estimate(median_of(ordered), ordered[below], ordered[-1 - below])


class PairsMean(NamedTuple):
    """The log-ratio of one build or process, and the variance that the noise of its pairs alone gives it."""

    log_ratio: float
    variance: float


def mean_of_pairs(log_ratios: Iterable[Sequence[float]]) -> PairsMean:
    """Computes the median of all pairs of a process, with its variance: that of many pairs, which is never too small.

    Each sequence has the pairs of one build, which has lost a degree of freedom to its median: without it, builds of
    four pairs had intervals that the next build contradicted in 4 of 100. Raises ValueError without any pair.
    """
    builds = [[*map(float, values)] for values in log_ratios if len(values)]
    if not builds:
        raise ValueError("no samples: a speedup needs at least one pair")
    residuals = residuals_within(builds)
    # The variance of the median of many values is pi / 2 times that of their mean.
    variance = math.pi / 2 * robust_spread(residuals) ** 2 / max(len(builds), len(residuals) - len(builds))
    return PairsMean(median_of(chain.from_iterable(builds)), variance)


@dataclass(frozen=True)
class Means:
    """Log-ratios of builds or of processes: their number n, their mean, and the sum of squares Q = d0 s0^2 + d v.

    v is their variance, with d = n - 1 degrees of freedom; s0^2 is its prediction, which is worth d0 = PRIOR_WORTH
    (Smyth, 2004, as in `shrink_all`). So a single one has an interval, too.
    """

    count: int
    mean: float
    squares: float

    @property
    def degrees_of_freedom(self) -> int:
        return PRIOR_WORTH + self.count - 1

    @property
    def ratio(self) -> Estimate:
        """The ratio with the interval of Student's t about the mean, t(d0 + d) * sqrt(Q / (d0 + d) / n)."""
        standard_error = math.sqrt(self.squares / self.degrees_of_freedom / self.count)
        half_width = special.stdtrit(self.degrees_of_freedom, CONFIDENCE) * standard_error
        return Estimate(*(math.exp(self.mean + sign * half_width) for sign in (0, -1, 1)))


def collect_means(means: Sequence[PairsMean]) -> Means:
    """Collects the means of builds or of processes; their predicted variance is BUILD_SPREAD^2, and what the noise of
    the pairs gives them. Raises ValueError for none."""
    mean, noise = fmean(one.log_ratio for one in means), fmean(one.variance for one in means)
    squares = PRIOR_WORTH * (BUILD_SPREAD**2 + noise) + math.fsum((one.log_ratio - mean) ** 2 for one in means)
    return Means(len(means), mean, squares)


def speedup_estimate(log_ratios: Sequence[Sequence[float]]) -> Estimate:
    """Estimates the speedup from the log-ratios of pairs, one sequence per build: their median, and the interval of the
    mean of the builds' medians.

    The build is the unit of replication for effects that pairs cannot show: memory placement and algorithm choice
    (Kalibera & Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013, section 9). Raises ValueError without any
    pair.
    """
    of_pairs, medians = mean_of_pairs(log_ratios), [median_of(values) for values in log_ratios if values]
    of_builds = collect_means([PairsMean(one, len(medians) * of_pairs.variance) for one in medians]).ratio
    median = math.exp(of_pairs.log_ratio)
    return Estimate(median, min(median, of_builds.low), max(median, of_builds.high))


def residuals_within(builds: Iterable[Sequence[float]]) -> list[float]:
    """Subtracts from each pair the median of its build: what pairs differ by within builds."""
    with_medians = ((values, median_of(values)) for values in builds if values)
    return [value - median for values, median in with_medians for value in values]


def widen(estimate: Estimate, half_width: float) -> Estimate:
    """Widens an interval to at least the median's -`half_width` to +`half_width`, as log-ratios: with that of
    `Variation.half_width`, the interval of a process covers what it may differ by from its machine."""
    low, high = (estimate.median * math.exp(sign * half_width) for sign in (-1, 1))
    return Estimate(estimate.median, min(estimate.low, low), max(estimate.high, high))


def robust_spread(values: Sequence[float]) -> float:
    """Estimates the standard deviation by the median absolute deviation, scaled for a normal distribution."""
    if len(values) <= 1:
        return 0.0
    middle = median_of(values)
    return median_of(abs(value - middle) for value in values) / float(special.ndtri(0.75))

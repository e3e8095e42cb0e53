"""Medians and their confidence intervals. Pure statistics on sequences of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from statistics import median as median_of

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


@cache
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Computes a quantile of Student's t distribution; cached, since judging needs a few quantiles again and again."""
    return float(special.stdtrit(degrees_of_freedom, probability))


def speedup_estimate(log_ratios: Sequence[Sequence[float]]) -> Estimate:
    """Estimates the speedup from the log-ratios of pairs, one sequence per build: their median, and the interval of the
    mean of the builds' medians.

    The build is the unit of replication for effects that pairs cannot show: memory placement and algorithm choice
    (Kalibera & Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013, section 9). The half-width over n builds is
    t(d0 + d) * s / sqrt(n), where s^2 = (d0 s0^2 + d v) / (d0 + d): v is the variance of the medians with d = n - 1
    degrees of freedom; s0^2 is its prediction, BUILD_SPREAD^2 and the variance that the pairs alone give a median, and
    d0 is PRIOR_WORTH (Smyth, 2004, as in `shrink_all`). So one build has an interval, too. Raises ValueError without
    any pair.
    """
    builds = [values for values in log_ratios if values]
    if not builds:
        raise ValueError("no samples: a speedup needs at least one pair")
    median, medians = median_of(value for values in builds for value in values), [median_of(one) for one in builds]
    mean, degrees = fmean(medians), PRIOR_WORTH + len(medians) - 1
    predicted = BUILD_SPREAD**2 + len(builds) * variance_of_pairs(builds)
    squares = math.fsum((each - mean) ** 2 for each in medians) + PRIOR_WORTH * predicted
    half_width = t_quantile(CONFIDENCE, degrees) * math.sqrt(squares / degrees / len(medians))
    low, high = min(median, mean - half_width), max(median, mean + half_width)
    return Estimate(*map(math.exp, (median, low, high)))


def variance_of_pairs(builds: Sequence[Sequence[float]]) -> float:
    """Computes the variance that the pairs alone give the median of a process, from their spread within builds.

    Each build has lost a degree of freedom to its median: without it, builds of four pairs had intervals that the next
    build contradicted in 4 of 100.
    """
    residuals = residuals_within(builds)
    return variance_of_median(robust_spread(residuals), max(len(builds), len(residuals) - len(builds)))


def residuals_within(builds: Iterable[Sequence[float]]) -> list[float]:
    """Subtracts from each pair the median of its build: what pairs differ by within builds."""
    with_medians = ((values, median_of(values)) for values in builds if values)
    return [value - median for values, median in with_medians for value in values]


def variance_of_median(sd: float, count: float) -> float:
    """Computes the variance of the median of many values with this standard deviation: pi / 2 times that of a mean."""
    return math.pi / 2 * sd**2 / count


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

"""Medians and their confidence intervals. Pure statistics on sequences of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count as count_up
from statistics import fmean
from statistics import median as median_of

from scipy import special  # scipy.stats would take half a second more to import

from gpugate.units import Bound, Positive

CONFIDENCE = 0.99  # one-sided: a bound is wrong at most once in a hundred
# Measured difference between two identical sides over their whole life in one process, as a log-ratio. It is the
# half-width where there are too few builds to estimate one, and no record shows how much processes differ. Pairs alone
# would be wrong in 4 of 10 runs.
UNKNOWN_BUILD_SPREAD = 0.01
# Typical difference between two identical builds, as a log-ratio: 0.03 to 1 % were measured. One round of pairs cannot
# estimate it.
BUILD_SPREAD = 0.003


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

    def overlaps(self, other: Estimate) -> bool:
        return self.low <= other.high and other.low <= self.high


def median_interval(samples: Sequence[float]) -> Estimate:
    """Computes the median with a distribution-free interval from order statistics.

    The k-th smallest of n samples is a lower bound of the median at one-sided confidence
    1 - P(Binomial(n, 1/2) < k); the upper bound is its mirror image (Conover, Practical Nonparametric Statistics,
    3rd ed., 1999, section 3.2). With too few samples for that confidence (below seven at 99 %) the bounds are the
    extremes widened by the range, so that no false precision arises. Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples: a median needs at least one")
    ordered = sorted(map(float, samples))
    below = _samples_below(len(ordered))
    spread = ordered[-1] - ordered[0] if below < 0 else 0.0
    below = max(0, below)
    return Estimate(median_of(ordered), ordered[below] - spread, ordered[-1 - below] + spread)


def time_interval(samples: Sequence[float]) -> Estimate:
    """Computes the `median_interval` of positive samples such as times.

    Where there are too few samples, the extremes are widened by their ratio: by their range, an end could be negative.
    """
    if not samples or _samples_below(len(samples)) >= 0:
        return median_interval(samples)
    low, high = min(samples), max(samples)
    return Estimate(float(median_of(samples)), low * low / high, high * high / low)


@cache
def _samples_below(count: int) -> int:
    # The index of the lower bound, below 0 where there are too few samples; bdtr is P(Binomial(count, 1/2) <= k).
    return next(k for k in count_up() if special.bdtr(k, count, 0.5) > 1 - CONFIDENCE) - 1


@cache
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Computes a quantile of Student's t distribution; cached, since judging needs a few quantiles again and again."""
    return float(special.stdtrit(degrees_of_freedom, probability))


def order_effect(medians: Sequence[float], reference_first: Sequence[bool]) -> float:
    """Computes half the difference of medians between builds with the reference built first and the other builds.

    The order of building decides the memory of each side: two identical sides differed by +2 and -2 % in turn. 0 with
    fewer than two builds of either order, and where removing the effect does not reduce the median absolute deviation
    of the builds: one outlier must not pass for an effect.
    """
    signed = [(median, 1 if first else -1) for median, first in zip(medians, reference_first, strict=True)]
    first, other = ([median for median, sign in signed if sign == order] for order in (1, -1))
    if min(len(first), len(other)) < 2:
        return 0.0
    effect = (median_of(first) - median_of(other)) / 2
    without = [median - sign * effect for median, sign in signed]
    return effect if robust_spread(without) < robust_spread(medians) else 0.0


def speedup_estimate(
    log_ratios: Sequence[Sequence[float]],
    reference_first: Sequence[bool],
    of_machine: float | None = None,
) -> Estimate:
    """Estimates the speedup from the log-ratios of pairs, one sequence per build, with an interval that covers both
    the interval over pairs and the interval over builds.

    The build is the unit of replication for effects that pairs cannot show: memory placement and algorithm choice
    (Kalibera & Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013, section 9). The interval over n builds is
    that of the mean of their medians, to which the t distribution applies: t(n-k) * s / sqrt(n), where k is 2 if the
    `order_effect` was removed, else 1. The same width around their median would be wrong up to three times as often as
    its confidence allows. `reference_first` is True for each build whose reference was built first.

    `of_machine` is the half-width by which a process may differ from its machine, see `Variation.half_width`: the
    interval then covers that, too. It replaces UNKNOWN_BUILD_SPREAD, the half-width over builds where fewer than two
    degrees of freedom show none. Raises ValueError without any pair.
    """
    taken = [(values, first) for values, first in zip(log_ratios, reference_first, strict=True) if values]
    effect = order_effect([median_of(values) for values, _ in taken], [first for _, first in taken])
    adjusted = [[value - effect if first else value + effect for value in values] for values, first in taken]
    pooled = median_interval([value for values in adjusted for value in values])
    medians = [median_of(values) for values in adjusted]
    mean, free = fmean(medians), len(medians) - (2 if effect else 1)
    between = UNKNOWN_BUILD_SPREAD if of_machine is None else of_machine
    if free >= 2:
        squares = math.fsum((median - mean) ** 2 for median in medians)
        between = t_quantile(CONFIDENCE, free) * math.sqrt(squares / free / len(medians))
    low, high = min(pooled.low, mean - between), max(pooled.high, mean + between)
    return widen(Estimate(*map(math.exp, (pooled.median, low, high))), of_machine or 0.0)


def widen(estimate: Estimate, half_width: float) -> Estimate:
    """Widens an interval to at least the median's -`half_width` to +`half_width`, as log-ratios."""
    low, high = (estimate.median * math.exp(sign * half_width) for sign in (-1, 1))
    return Estimate(estimate.median, min(estimate.low, low), max(estimate.high, high))


def robust_spread(values: Sequence[float]) -> float:
    """Estimates the standard deviation by the median absolute deviation, scaled for a normal distribution."""
    if len(values) <= 1:
        return 0.0
    middle = median_of(values)
    return median_of(abs(value - middle) for value in values) / float(special.ndtri(0.75))

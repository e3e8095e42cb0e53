"""Tolerances from the run-to-run variation of recorded processes, and the slowdown they can detect. Pure."""

from __future__ import annotations

import math
from functools import cache

from scipy import special

from gpugate.statistics.intervals import UNKNOWN_BUILD_SPREAD, t_quantile
from gpugate.statistics.policy import DECIDING_PROCESSES, MISS
from gpugate.statistics.variation import Variation

# No tolerance is tighter. A record of one night does not contain the difference between loans of a machine, a standard
# deviation of 0.2 to 0.4 % of inference; the two most distant loans differed by 1.4 %.
FLOOR = UNKNOWN_BUILD_SPREAD
# Times the factor of the variation, for the wall time: the slope of its control is known from a few processes, too.
# Chosen on simulated nights of the records of an H200, tried on those of an H100.
WALL_FACTOR = 1.25
MIN_VARIATION_FACTOR = 4.0


def median_variance(count: int) -> float:
    """Computes the variance of the median of `count` values of a standard normal distribution: pi / (2 n + pi - 2).

    It is exact for one value, 2 % too small for a larger odd count, and too large for an even one: by 11 % for six
    values, by 22 % for two.
    """
    return math.pi / (2 * count + math.pi - 2)


@cache
def variation_factor(values: int, checks_per_night: int, degrees_of_freedom: float) -> float:
    """Computes the tolerance in units of the variation: the middle one of DECIDING_PROCESSES processes against the
    median of `values` recorded ones.

    t(f, 1 - a) * sqrt(Var median(DECIDING_PROCESSES) + Var median(n)): a prediction bound for the median of new
    observations (Hahn & Meeker, Statistical Intervals, 1991, section 4.8) with medians for means. The variation is
    known with f `degrees_of_freedom`. The level a of one check keeps the false alarms of a suite at MISS by design:
    a = 1 - (1 - MISS) ** (1 / checks_per_night) (Sidak, 1967). The factor is at least MIN_VARIATION_FACTOR, so
    that a suite of one workload is not too strict.
    """
    chance = 1.0 - math.pow(1 - MISS, 1 / max(checks_per_night, 1))
    return max(MIN_VARIATION_FACTOR, t_quantile(1 - chance, degrees_of_freedom) * _predict_spread(values))


def _predict_spread(values: int) -> float:
    return math.sqrt(median_variance(DECIDING_PROCESSES) + median_variance(values))


def log_tolerance(variation: Variation, values: int, checks_per_night: int, times: float = 1.0) -> float:
    """Computes the change of a logarithm that may be chance: sqrt(FLOOR^2 + (times x factor x variation)^2)."""
    factor = variation_factor(values, checks_per_night, variation.degrees_of_freedom)
    return math.hypot(FLOOR, times * factor * variation.share)


def detectable_slowdown(variation: Variation, values: int, allowed: float) -> float:
    """Computes the smallest slowdown, a share of the time, that a gate catches 95 times in 100 where it tolerates
    `allowed`, a log: the middle process must lie beyond it."""
    return math.expm1(allowed + float(special.ndtri(1 - MISS)) * variation.share * _predict_spread(values))

"""Tolerances from the run-to-run variation of recorded processes, and the slowdown they can detect. Pure."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy import special

from gpugate.statistics.intervals import t_quantile
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.statistics.variation import Variation

# No tolerance is tighter. A record of one night does not contain the difference between loans of a machine, a standard
# deviation of 0.2 to 0.4 % of inference; the two most distant loans differed by 1.4 %.
FLOOR = 0.01
# Times the factor of the variation, for the wall time: the slope of its control is known from a few processes, too.
# Chosen on simulated nights of the records of an H200, tried on those of an H100.
WALL_FACTOR = 1.25
MIN_VARIATION_FACTOR = 4.0
FALSE_ALARMS_PER_NIGHT = 0.05  # by which the tolerances of a whole suite are chosen: a design, and no measured rate
POWER = 0.95  # probability with which a detectable slowdown is caught
_FAR, _GRID = 12.0, 4001  # standard deviations beyond which a normal density is 0, and points of a grid over them


@cache
def median_variance(count: int) -> float:
    """Computes the variance of the median of `count` values of a standard normal distribution.

    Of an odd count the median is one order statistic, of an even count the mean of the two middle ones (David &
    Nagaraja, Order Statistics, 3rd ed., 2003, sections 2.1 and 2.2).
    """
    half = count // 2
    z = np.linspace(-_FAR, _FAR, _GRID)
    step = z[1] - z[0]
    normal = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    # The sum of a density over an even grid is exact to the last digits where it is smooth and ends at 0.
    if count % 2:
        density = normal * (special.ndtr(z) * special.ndtr(-z)) ** half / special.beta(half + 1, half + 1)
        return float(np.sum(z**2 * density) * step)
    # The lower middle value lies at z and the upper one above: n! / (m - 1)!^2 F(x)^(m-1) (1 - F(y))^(m-1) f(x) f(y).
    below, above = normal * special.ndtr(z) ** (half - 1), normal * special.ndtr(-z) ** (half - 1)
    moments = [z**power * above for power in range(3)]
    # Those above each z, by the trapezoidal rule.
    tails = [step * (np.cumsum(moment[::-1])[::-1] - moment / 2) for moment in moments]
    squares = below * (z**2 * tails[0] + 2 * z * tails[1] + tails[2]) / 4
    ways = math.exp(special.gammaln(count + 1) - 2 * special.gammaln(half))
    return float(ways * np.sum(squares) * step)


@cache
def variation_factor(values: int, checks_per_night: int, degrees_of_freedom: float, are_nights: bool = False) -> float:
    """Computes the tolerance in units of the variation: the middle one of DECIDING_PROCESSES processes against the
    median of `values` recorded ones.

    t(f, 1 - a) * sqrt(v + Var median(n)): a prediction bound for the median of new observations (Hahn & Meeker,
    Statistical Intervals, 1991, section 4.8) with medians for means. The variation is known with f
    `degrees_of_freedom`. v is Var median(DECIDING_PROCESSES), and 1 where the values are medians of nights: all
    processes of a new night share it. The level a of one check keeps a suite at FALSE_ALARMS_PER_NIGHT: a = 1 - (1 -
    FALSE_ALARMS_PER_NIGHT) ** (1 / checks_per_night) (Sidak, 1967). The factor is at least MIN_VARIATION_FACTOR, so
    that a suite of one workload is not too strict.
    """
    chance = 1.0 - math.pow(1 - FALSE_ALARMS_PER_NIGHT, 1 / max(checks_per_night, 1))
    spread = _predict_spread(values, are_nights)
    return max(MIN_VARIATION_FACTOR, t_quantile(1 - chance, degrees_of_freedom) * spread)


def _predict_spread(values: int, are_nights: bool) -> float:
    return math.sqrt((1.0 if are_nights else median_variance(DECIDING_PROCESSES)) + median_variance(values))


def log_tolerance(
    variation: Variation, values: int, checks_per_night: int, are_nights: bool = False, times: float = 1.0
) -> float:
    """Computes the change of a logarithm that may be chance: sqrt(FLOOR^2 + (times x factor x variation)^2)."""
    factor = variation_factor(values, checks_per_night, variation.degrees_of_freedom, are_nights)
    return math.hypot(FLOOR, times * factor * variation.share)


def detectable_slowdown(variation: Variation, values: int, allowed: float, are_nights: bool = False) -> float:
    """Computes the smallest slowdown, a share of the time, that a gate catches 95 times in 100 where it tolerates
    `allowed`, a log: the middle process must lie beyond it."""
    spread = float(special.ndtri(POWER)) * variation.share * _predict_spread(values, are_nights)
    return math.expm1(allowed + spread)

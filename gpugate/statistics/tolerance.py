"""Tolerances from the run-to-run variation of recorded processes, and the slowdown they can detect. Pure."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy import special

from gpugate.statistics.intervals import t_quantile
from gpugate.statistics.policy import ATTEMPTS, MIN_PROCESSES, MIN_SITTINGS

# No tolerance is tighter. A one-night recording does not contain night-to-night drift: the speedup of one model moved
# by 1.4 % between two nights, and by 0.15 % between the processes of one. The cv of MIN_SITTINGS nights contains it.
RATIO_FLOOR = 0.01
RATIO_FLOOR_OVER_NIGHTS = 0.003
TIME_FLOOR = 0.05  # absolute time is gated loosely
TIME_FLOOR_OTHER_SOFTWARE = 0.25  # the same device under another driver or torch
MIN_CV_FACTOR = 4.0
UNKNOWN_CV_FLOOR = 0.05  # smallest tolerance of a record with fewer than MIN_PROCESSES
FALSE_ALARMS_PER_NIGHT = 0.05  # of the whole suite, when nothing changed: one in twenty nights
BOUNDS_NOTHING = 1.0  # at this tolerance no speedup is too low
_FAR = 12.0  # standard deviations, beyond which a normal density is 0
POWER = 0.95  # probability with which a detectable slowdown is caught


@cache
def median_variance(count: int) -> float:
    """Computes the variance of the median of `count` values of a standard normal distribution.

    The middle order statistic of 2m - 1 values is the normal quantile of a Beta(m, m) variable (David & Nagaraja,
    Order Statistics, 3rd ed., 2003, section 2.1). An even count is rounded down to an odd one, which errs on the side
    of a wider tolerance.
    """
    middle = (count + 1) // 2
    z = np.linspace(-_FAR, _FAR, 4001)
    # Density of the median. Its sum over an even grid is exact to the last digits: the density is smooth and ends at 0.
    density = (
        np.exp(-(z**2) / 2)
        / math.sqrt(2 * math.pi)
        * (special.ndtr(z) * special.ndtr(-z)) ** (middle - 1)
        / special.beta(middle, middle)
    )
    return float(np.sum(z**2 * density) * (z[1] - z[0]))


@cache
def cv_factor(processes: int, checks: int) -> float:
    """Computes the tolerance in units of the cv: the middle one of ATTEMPTS processes against the median of `processes`
    recorded ones.

    t(n-1, 1 - a) * sqrt(Var median(ATTEMPTS) + Var median(n)): a prediction bound for the median of new observations
    (Hahn & Meeker, Statistical Intervals, 1991, section 4.8) with medians for means. The level a of one of `checks`
    keeps the whole suite at FALSE_ALARMS_PER_NIGHT: a = 1 - (1 - FALSE_ALARMS_PER_NIGHT) ** (1 / checks) (Sidak,
    1967). The factor is at least MIN_CV_FACTOR, so that a suite of one workload is not too strict.
    """
    spread = math.sqrt(median_variance(ATTEMPTS) + median_variance(processes))
    return max(MIN_CV_FACTOR, _quantile(processes, checks) * spread)


@cache
def night_factor(nights: int, checks: int, processes_a_night: int = 1) -> float:
    """As `cv_factor`, for a cv of `nights`, each the median of `processes_a_night`.

    t(n-1, 1 - a) * sqrt(v + Var median(n)): a prediction bound for one new observation, since all attempts of one night
    share it. v = max(1, Var median(ATTEMPTS) / Var median(processes_a_night)) is its variance in units of a recorded
    night's, should the nights differ by nothing but their processes: fewer are asked than are recorded.
    """
    new = max(1.0, median_variance(ATTEMPTS) / median_variance(processes_a_night))
    return max(MIN_CV_FACTOR, _quantile(nights, checks) * math.sqrt(new + median_variance(nights)))


def _quantile(count: int, checks: int) -> float:
    level = 1 - (1 - FALSE_ALARMS_PER_NIGHT) ** (1 / max(checks, 1))
    return t_quantile(1 - level, count - 1)


def tolerance(cv: float | None, processes: int, floor: float, checks: int = 1) -> float:
    """Computes max(floor, factor x between-run cv); with too few processes to estimate the cv, at least 5 %."""
    if cv is None or processes < MIN_PROCESSES:
        return max(floor, UNKNOWN_CV_FLOOR, MIN_CV_FACTOR * (cv or 0.0))
    return max(floor, cv_factor(processes, checks) * cv)


def speedup_tolerance(cv: float | None, processes: int, sittings: int, checks: int) -> float:
    """The share by which a speedup may fall below the recorded one: a smaller fall cannot be told from chance."""
    if sittings >= MIN_SITTINGS and processes >= MIN_PROCESSES and cv is not None:
        return max(RATIO_FLOOR_OVER_NIGHTS, night_factor(sittings, checks, processes // sittings) * cv)
    return tolerance(cv, processes, RATIO_FLOOR, checks)


def detectable_slowdown(cv: float | None, processes: int, sittings: int, allowed: float) -> float:
    """Computes the smallest slowdown of the optimized side that a gate tolerating `allowed` catches 95 times in 100.

    The speedup must fall by x = allowed + z(0.95) * cv * sqrt(v + Var median(n)): the first process must find the fall,
    since a first process that passes starts no confirmation. n is the number of values behind the cv: processes, with
    v = 1, or nights. For nights, v = 1 / Var median(processes a night) is the variance of one process in units of a
    night's, should nights differ by their processes alone. A slowdown d divides the speedup by 1 + d, so
    d = x / (1 - x); infinite where x reaches 1.
    """
    over_nights = sittings >= MIN_SITTINGS
    one = 1 / median_variance(processes // sittings) if over_nights else 1.0
    spread = math.sqrt(one + median_variance(sittings if over_nights else processes))
    fall = allowed + float(special.ndtri(POWER)) * (cv or 0.0) * spread
    return fall / (1 - fall) if fall < 1 else math.inf

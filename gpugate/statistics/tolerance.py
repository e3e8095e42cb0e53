"""Tolerances from the run-to-run variation of recorded processes, and the slowdown they can detect. Pure."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy import special

from gpugate.statistics.intervals import t_quantile
from gpugate.statistics.policy import DECIDING_PROCESSES, MIN_NIGHTS, MIN_PROCESSES
from gpugate.statistics.variation import Variation


def fall_of(slowdown: float) -> float:
    """Computes the share by which a speed falls where a step takes `slowdown`, a share, longer: d / (1 + d)."""
    return slowdown / (1 + slowdown)


# No tolerance is tighter. A one-night recording does not contain night-to-night drift: speedups of one model differ by
# standard deviations of 0.2 to 0.4 % between loans of a machine, and the two most distant ones by 1.4 %. With
# MIN_NIGHTS nights, drift is measured.
RATIO_FLOOR = fall_of(0.01)
RATIO_FLOOR_OVER_NIGHTS = fall_of(0.003)
TIME_FLOOR = 0.02  # of a slowdown: a time also moves with the clock of a night, which pairs remove from a speedup
TIME_FLOOR_OVER_NIGHTS = 0.01
TIME_FLOOR_FACTOR = 3.0  # times the measured variation of the time
TIME_FLOOR_OTHER_SOFTWARE = 0.25  # the same device under another driver or torch
MIN_VARIATION_FACTOR = 4.0
UNKNOWN_VARIATION_FLOOR = 0.05  # smallest tolerance of a record with fewer than MIN_PROCESSES
FALSE_ALARMS_PER_NIGHT = 0.05  # of the whole suite, when nothing changed: one in twenty nights
BOUNDS_NOTHING = 1.0  # at this tolerance no speedup is too low
_FAR, _GRID = 12.0, 4001  # standard deviations beyond which a normal density is 0, and points of a grid over them
POWER = 0.95  # probability with which a detectable slowdown is caught


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
def variation_factor(processes: int, checks_per_night: int, degrees_of_freedom: float | None = None) -> float:
    """Computes the tolerance in units of the variation: the middle one of DECIDING_PROCESSES processes against the
    median of `processes` recorded ones.

    t(f, 1 - a) * sqrt(Var median(DECIDING_PROCESSES) + Var median(n)): a prediction bound for the median of new
    observations (Hahn & Meeker, Statistical Intervals, 1991, section 4.8) with medians for means. The variation is
    known with f `degrees_of_freedom`, n - 1 by default. The level a of one check keeps the whole suite at
    FALSE_ALARMS_PER_NIGHT: a = 1 - (1 - FALSE_ALARMS_PER_NIGHT) ** (1 / checks_per_night) (Sidak, 1967). The factor is
    at least MIN_VARIATION_FACTOR, so that a suite of one workload is not too strict.
    """
    spread = math.sqrt(median_variance(DECIDING_PROCESSES) + median_variance(processes))
    return max(MIN_VARIATION_FACTOR, _quantile(degrees_of_freedom or processes - 1, checks_per_night) * spread)


@cache
def night_factor(nights: int, checks_per_night: int, processes_a_night: int = 1) -> float:
    """Computes `variation_factor` for the variation between `nights`, each the median of `processes_a_night`.

    t(n-1, 1 - a) * sqrt(v + Var median(n)): a prediction bound for one new observation, since all processes of one
    night share the night. v is `night_variance`.
    """
    spread = math.sqrt(night_variance(processes_a_night) + median_variance(nights))
    return max(MIN_VARIATION_FACTOR, _quantile(nights - 1, checks_per_night) * spread)


def night_variance(processes_a_night: int) -> float:
    """Computes the variance of a new night in units of a recorded night's, each the median of its processes.

    max(1, Var median(DECIDING_PROCESSES) / Var median(processes_a_night)), should nights differ by nothing but their
    processes: fewer processes decide than are recorded.
    """
    return max(1.0, median_variance(DECIDING_PROCESSES) / median_variance(processes_a_night))


def _quantile(degrees_of_freedom: float, checks_per_night: int) -> float:
    return t_quantile(1 - false_alarm_chance(checks_per_night), degrees_of_freedom)


def tolerance(
    variation: float | None,
    processes: int,
    floor: float,
    checks_per_night: int = 1,
    degrees_of_freedom: float | None = None,
) -> float:
    """Computes max(floor, factor x variation between processes); with too few processes to estimate it, at least 5 %.

    `variation` is None for a single process.
    """
    if variation is None or processes < MIN_PROCESSES:
        return max(floor, UNKNOWN_VARIATION_FLOOR, MIN_VARIATION_FACTOR * (variation or 0.0))
    return max(floor, variation_factor(processes, checks_per_night, degrees_of_freedom) * variation)


def speedup_tolerance(
    variation: float | None,
    processes: int,
    nights: int,
    checks_per_night: int,
    degrees_of_freedom: float | None = None,
) -> float:
    """Computes the share by which a speedup may fall below its record; a smaller fall may be chance.

    sqrt(RATIO_FLOOR^2 + (factor x variation)^2): the floor is three standard deviations of the difference between
    loans of a machine, which a record of few nights does not contain and which comes beside the variation between
    processes.
    """
    if nights >= MIN_NIGHTS and processes >= MIN_PROCESSES and variation is not None:
        return max(RATIO_FLOOR_OVER_NIGHTS, night_factor(nights, checks_per_night, processes // nights) * variation)
    if variation is None or processes < MIN_PROCESSES:
        return tolerance(variation, processes, RATIO_FLOOR)
    return math.hypot(RATIO_FLOOR, variation_factor(processes, checks_per_night, degrees_of_freedom) * variation)


def time_tolerance(variation: float | None, processes: int, nights: int, checks_per_night: int) -> float:
    """Computes the share by which the speed of the optimized side may fall below its record under the same software.

    The floor of a case is TIME_FLOOR_FACTOR times the variation of its own time.
    """
    smallest = TIME_FLOOR_OVER_NIGHTS if nights >= MIN_NIGHTS else TIME_FLOOR
    floor = fall_of(max(smallest, TIME_FLOOR_FACTOR * (variation or 0.0)))
    return tolerance(variation, processes, floor, checks_per_night)


# No tolerance is tighter: a one-night recording does not contain the difference between loans of a machine, a standard
# deviation of 0.2 to 0.4 %.
FLOOR = 0.01
# Times the factor of the variation: the slope of the control is known from a few processes too. Chosen on simulated
# nights of the records of an H200, tried on those of an H100.
WALL_FACTOR = 1.25


def wall_tolerance(variation: Variation, values: int, checks_per_night: int) -> float:
    """Computes the rise of the log time beyond its control that may be chance, where `values` processes are recorded:
    sqrt(FLOOR^2 + (WALL_FACTOR x factor x variation)^2)."""
    factor = variation_factor(values, checks_per_night, variation.degrees_of_freedom)
    return math.hypot(FLOOR, WALL_FACTOR * factor * variation.share)


def detectable_rise(variation: Variation, values: int, allowed: float) -> float:
    """Computes the smallest slowdown, a share of the time, that a gate which tolerates a log of `allowed` catches 95
    times in 100: the median of DECIDING_PROCESSES processes must lie beyond it."""
    spread = math.sqrt(median_variance(DECIDING_PROCESSES) + median_variance(values))
    return math.expm1(allowed + float(special.ndtri(POWER)) * variation.share * spread)


def false_alarm_chance(checks_per_night: int) -> float:
    """Computes the chance with which one check against a record alarms where nothing changed (Sidak, 1967)."""
    return 1.0 - math.pow(1 - FALSE_ALARMS_PER_NIGHT, 1 / max(checks_per_night, 1))


def shortfall_chance(recorded: float, promised: float, variation: Variation, processes: int) -> float:
    """Computes the chance with which the middle one of DECIDING_PROCESSES processes falls below a promise where nothing
    changed, from the variation of the `processes` recorded: Student's t, as the tolerance."""
    spread = variation.share * math.sqrt(median_variance(DECIDING_PROCESSES) + median_variance(processes))
    distance = 1 - promised / recorded
    if spread == 0:
        return 0.0 if distance >= 0 else 1.0
    return float(special.stdtr(variation.degrees_of_freedom, -distance / spread))


def detectable_slowdown(variation: float | None, processes: int, nights: int, allowed: float) -> float:
    """Computes the smallest slowdown of the optimized side that a gate tolerating `allowed` catches 95 times in 100.

    The speedup must fall by x = allowed + z(0.95) * variation * sqrt(v + Var median(n)), where v = Var
    median(DECIDING_PROCESSES) is the variance of the deciding process: after such a fall no first process passes, since
    its interval contains the variation between processes. n is the number of values behind the variation: processes, or
    nights, of which v is `night_variance`. A slowdown d divides the speedup by 1 + d, so d = x / (1 - x); infinite
    where x reaches 1.
    """
    over_nights = nights >= MIN_NIGHTS
    decider = night_variance(processes // nights) if over_nights else median_variance(DECIDING_PROCESSES)
    spread = math.sqrt(decider + median_variance(nights if over_nights else processes))
    fall = allowed + float(special.ndtri(POWER)) * (variation or 0.0) * spread
    return fall / (1 - fall) if fall < 1 else math.inf

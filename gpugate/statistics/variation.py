"""The variation of a case between processes: known from three to eleven values, shrunk towards its prediction from the
noise of the pairs; the tolerances that follow from it, and the slowdown that they detect. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from gpugate.statistics.intervals import CONFIDENCE, PRIOR_WORTH, UNKNOWN_BUILD_SPREAD
from gpugate.statistics.policy import DECIDING_PROCESSES, MISS
from gpugate.units import NotNegative, Positive, Share

MIN_CASES = 10  # of a fit: fewer say little about a trend and the scatter about it
# The share of a change of the reference's time, as a logarithm, by which the optimized side's time changes on the same
# machine: the mean over cases, which is the standard deviation between them, too. The 87 records of an H200 gave 0.65
# and 0.65 by the method of Paule and Mandel (Journal of Research of the National Bureau of Standards 87, 1982), and the
# 57 records of an H100, which were not used, give 0.65 and 0.66.
SLOPE = 0.65
# Times the factor of the variation, for the wall time: the slope of its control is known from a few processes, too.
# Chosen on simulated nights of the records of an H200, tried on those of an H100.
WALL_FACTOR = 1.25
MIN_VARIATION_FACTOR = 4.0


@dataclass(frozen=True)
class Variation:
    """A standard deviation between processes, as a share, and the degrees of freedom with which it is known."""

    share: NotNegative
    degrees_of_freedom: Positive

    @property
    def half_width(self) -> float:
        """The half-width of the interval that one process gives for its machine: t(f) * s, as a log-ratio.

        It contains what differs between builds, since each process has builds of its own. One process is one value of
        that distribution (Hahn & Meeker, Statistical Intervals, 1991, section 4.7), however many pairs it has.
        """
        return float(special.stdtrit(self.degrees_of_freedom, CONFIDENCE)) * self.share


@dataclass(frozen=True)
class Control:
    """The reference as the control of an optimized side's time: the variation of log time less `slope` x log reference
    time between processes, as a share."""

    slope: Share
    variation: Variation


def fit_control(log_times: Sequence[float], log_references: Sequence[float]) -> Control | None:
    """Fits the control of one case to its recorded processes; None for fewer than three.

    The slope of least squares is shrunk towards SLOPE by its own variance (the posterior mean of a normal prior), and
    lies from 0 to 1: a change of the machine moves no optimized side against its reference or by more than it. The
    case's own share of the slope is what it takes of the degrees of freedom.
    """
    count = len(log_times)
    if count < 3:
        return None
    time, reference = (np.asarray(values) - np.mean(values) for values in (log_times, log_references))
    spread = float(np.sum(reference**2))
    own, share = 0.0, 0.0
    if spread > 0:
        own = float(np.sum(reference * time)) / spread
        variance = float(np.sum((time - own * reference) ** 2)) / (count - 2) / spread
        share = SLOPE**2 / (SLOPE**2 + variance)
    slope = min(1.0, max(0.0, share * own + (1 - share) * SLOPE))
    free = count - 1 - share
    return Control(slope, Variation(math.sqrt(float(np.sum((time - slope * reference) ** 2)) / free), free))


def shrink_all(cases: Sequence[tuple[Variation, float] | None]) -> list[Variation | None]:
    """Shrinks the variance of each case towards its prediction from the noise of its pairs: the standard error that
    these alone give the median of a process. None for a case without both, and for every case where fewer than
    MIN_CASES vary, in their pairs and between processes.

    The prediction is log s0^2 = level + slope * log(pair noise), fitted to the cases that vary: each log s^2, with the
    bias of its degrees of freedom removed (digamma), is regressed on the log of the noise, as the `trend` of limma
    regresses it on a covariate. The mean of log s^2 over cases is above log s0^2. The posterior variance is s^2 = (d0
    s0^2 + d s^2) / (d0 + d), known with d0 + d degrees of freedom: d are those of the own variance, and d0 is
    PRIOR_WORTH (Smyth, Linear models and empirical Bayes methods, Statistical Applications in Genetics and Molecular
    Biology 3, 2004, section 4).
    """
    fitted = [(own, noise) for own, noise in filter(None, cases) if own.share > 0 and noise > 0]
    if len(fitted) < MIN_CASES:
        return [None] * len(cases)
    noises = np.array([noise for _, noise in fitted])
    half = np.array([own.degrees_of_freedom for own, _ in fitted]) / 2
    known = 2 * np.log([own.share for own, _ in fitted]) - special.digamma(half) + np.log(half)
    (level, slope), *_ = np.linalg.lstsq(np.column_stack([np.ones(len(fitted)), np.log(noises)]), known, rcond=None)
    level += special.digamma(PRIOR_WORTH / 2) - math.log(PRIOR_WORTH / 2)

    def shrink(own: Variation, noise: float) -> Variation:
        predicted = math.exp(level + slope * math.log(max(noise, float(min(noises)))))
        degrees = PRIOR_WORTH + own.degrees_of_freedom
        squares = PRIOR_WORTH * predicted + own.degrees_of_freedom * own.share**2
        return Variation(math.sqrt(squares / degrees), degrees)

    return [shrink(*case) if case is not None else None for case in cases]


def median_variance(count: int) -> float:
    """Computes the variance of the median of `count` values of a standard normal distribution: pi / (2 n + pi - 2).

    It is exact for one value, 2 % too small for a larger odd count, and too large for an even one: by 11 % for six
    values, by 22 % for two.
    """
    return math.pi / (2 * count + math.pi - 2)


def log_tolerance(variation: Variation, values: int, checks_per_night: int, times: float = 1.0) -> float:
    """Computes the change of a logarithm that may be chance, for the middle one of DECIDING_PROCESSES processes against
    the median of `values` recorded ones: `times` factor x variation, beside UNKNOWN_BUILD_SPREAD. A record of one night
    does not contain the difference between loans of a machine, a standard deviation of 0.2 to 0.4 % of inference.

    The factor is t(f, 1 - a) * sqrt(Var median(DECIDING_PROCESSES) + Var median(n)): a prediction bound for the median
    of new observations (Hahn & Meeker, Statistical Intervals, 1991, section 4.8) with medians for means. The level a of
    one check keeps the false alarms of a suite at MISS by design: a = 1 - (1 - MISS) ** (1 / checks_per_night) (Sidak,
    1967). The factor is at least MIN_VARIATION_FACTOR, so that a suite of one workload is not too strict.
    """
    level = math.pow(1 - MISS, 1 / max(checks_per_night, 1))
    factor = max(MIN_VARIATION_FACTOR, special.stdtrit(variation.degrees_of_freedom, level) * _predict_spread(values))
    return math.hypot(UNKNOWN_BUILD_SPREAD, times * factor * variation.share)


def _predict_spread(values: int) -> float:
    return math.sqrt(median_variance(DECIDING_PROCESSES) + median_variance(values))


def detectable_slowdown(variation: Variation, values: int, allowed: float) -> float:
    """Computes the smallest slowdown, a share of the time, that a gate catches 95 times in 100 where it tolerates
    `allowed`, a log: the middle process must lie beyond it."""
    return math.expm1(allowed + float(special.ndtri(1 - MISS)) * variation.share * _predict_spread(values))


def margin_of_two(deviation: float, values: int) -> float:
    """Computes by how much the true log must lie beyond a tolerance, so that two processes both do 95 times in 100:
    each fails to with MISS / 2. The standard deviation and the median are those of `values` recorded processes."""
    return float(special.stdtrit(values - 1, 1 - MISS / 2)) * deviation * math.sqrt(1 + median_variance(values))

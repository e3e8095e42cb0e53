"""The variation of a case between processes, known from five or six values, shrunk towards its prediction from the
noise of the pairs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from gpugate.units import NotNegative, Positive, Share

MIN_CASES = 10  # of a fit: fewer say little about a trend and the scatter about it
# Processes that a prediction of their variance from the noise of their pairs is worth. The records of an H200 and an
# H100 gave 1.3 and 1.4 for speedups, and 4.1 and 2.0 for times, and the A/A trials of CPUs 2 to 3 for duets.
PRIOR_WORTH = 2
# The share of a change of the reference's time, as a logarithm, by which the optimized side's time changes on the same
# machine: the mean over cases and the standard deviation between them. The 87 records of an H200 gave 0.65 and 0.65 by
# the method of Paule and Mandel (Journal of Research of the National Bureau of Standards 87, 1982), and the 57 records
# of an H100, which were not used, give 0.65 and 0.66.
SLOPE = SLOPE_SD = 0.65


@dataclass(frozen=True)
class Variation:
    """A standard deviation between processes, as a share, and the degrees of freedom with which it is known."""

    share: NotNegative
    degrees_of_freedom: Positive


@dataclass(frozen=True)
class Control:
    """The reference as the control of an optimized side's time: the variation of log time less `slope` x log reference
    time between processes, as a share."""

    slope: Share
    variation: Variation


@dataclass(frozen=True)
class Observed:
    """The variation of one case, and the standard error that its pairs alone give the median of a process."""

    variation: Variation
    pair_noise: NotNegative


def fit_control(log_times: Sequence[float], log_references: Sequence[float]) -> Control | None:
    """Fits the control of one case to its recorded processes; None for fewer than three.

    The slope of least squares is shrunk towards SLOPE by its own variance (the posterior mean of a normal prior), and
    lies from 0 to 1: a change of the machine moves no optimized side against its reference or by more than it. The
    case's own share of the slope is what it takes of the degrees of freedom.
    """
    count = len(log_times)
    if count < 3:
        return None
    time = np.asarray(log_times) - np.mean(log_times)
    reference = np.asarray(log_references) - np.mean(log_references)
    spread = float(np.sum(reference**2))
    own, share = 0.0, 0.0
    if spread > 0:
        own = float(np.sum(reference * time)) / spread
        variance = float(np.sum((time - own * reference) ** 2)) / (count - 2) / spread
        share = SLOPE_SD**2 / (SLOPE_SD**2 + variance)
    slope = min(1.0, max(0.0, share * own + (1 - share) * SLOPE))
    free = count - 1 - share
    left = float(np.sum((time - slope * reference) ** 2)) / free
    return Control(slope, Variation(math.sqrt(left), free))


def shrink_all(cases: Sequence[Observed | None]) -> list[Variation | None]:
    """Shrinks the variance of each case towards its prediction from the noise of its pairs. None for a case without
    any, and for every case where fewer than MIN_CASES vary, in their pairs and between processes.

    The prediction is log s0^2 = level + slope * log(pair noise), fitted to the cases that vary: each log s^2, with the
    bias of its degrees of freedom removed (digamma), is regressed on the log of the noise, as the `trend` of limma
    regresses it on a covariate. The mean of log s^2 over cases is above log s0^2. The posterior variance is s^2 = (d0
    s0^2 + d s^2) / (d0 + d), known with d0 + d degrees of freedom: d are those of the own variance, and d0 is
    PRIOR_WORTH (Smyth, Linear models and empirical Bayes methods, Statistical Applications in Genetics and Molecular
    Biology 3, 2004, section 4).
    """
    fitted = [case for case in cases if case is not None and case.variation.share > 0 and case.pair_noise > 0]
    if len(fitted) < MIN_CASES:
        return [None] * len(cases)
    noises = np.array([case.pair_noise for case in fitted])
    half = np.array([case.variation.degrees_of_freedom for case in fitted]) / 2
    known = 2 * np.log([case.variation.share for case in fitted]) - special.digamma(half) + np.log(half)
    design = np.column_stack([np.ones(len(fitted)), np.log(noises)])
    (level, slope), *_ = np.linalg.lstsq(design, known, rcond=None)
    level += special.digamma(PRIOR_WORTH / 2) - math.log(PRIOR_WORTH / 2)

    def shrink(case: Observed) -> Variation:
        own, noise = case.variation, max(case.pair_noise, float(min(noises)))
        predicted, degrees = math.exp(level + slope * math.log(noise)), PRIOR_WORTH + own.degrees_of_freedom
        squares = PRIOR_WORTH * predicted + own.degrees_of_freedom * own.share**2
        return Variation(math.sqrt(squares / degrees), degrees)

    return [shrink(case) if case is not None else None for case in cases]

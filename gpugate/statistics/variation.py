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
OUTLYING = 0.01  # a case varies more than its prediction allows when so few cases would: it keeps its own variation
_NEWTON_STEPS = 50
# The share of a change of the reference's time, as a logarithm, by which the optimized side's time changes on the same
# machine: the mean over cases and the standard deviation between them. The 87 records of an H200 gave 0.65 and 0.65 by
# the method of Paule and Mandel (Journal of Research of the National Bureau of Standards 87, 1982), and the 57 records
# of an H100, which were not used, give 0.65 and 0.66.
SLOPE, SLOPE_SD = 0.65, 0.65


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

    def change(self, log_time: float, log_reference: float) -> float:
        """Corrects a change of log time by the change of the reference's log time."""
        return log_time - self.slope * log_reference


@dataclass(frozen=True)
class Observed:
    """The variation of one case, and the standard error that its pairs alone give the median of a process."""

    variation: Variation
    pair_noise: NotNegative


@dataclass(frozen=True)
class Prior:
    """The distribution of variances s^2 over cases: log s0^2 = level + slope * log(pair noise), and a scaled inverse
    chi-square distribution about it, which is worth `degrees_of_freedom` further values of each case."""

    level: float
    slope: float
    degrees_of_freedom: float
    smallest_noise: float  # of the cases that it was fitted to

    def variance(self, pair_noise: float) -> float:
        """Predicts the variance of a case from the noise of its pairs: s0^2."""
        return math.exp(self.level + self.slope * math.log(max(pair_noise, self.smallest_noise)))

    def shrink(self, case: Observed) -> Variation:
        """Computes the posterior variation of a case by `shrink_variance`."""
        predicted = Variation(math.sqrt(self.variance(case.pair_noise)), self.degrees_of_freedom)
        return shrink_variance(case.variation, predicted)


def shrink_variance(own: Variation, predicted: Variation) -> Variation:
    """Computes the posterior variance, s^2 = (d0 s0^2 + d s^2) / (d0 + d), known with d0 + d degrees of freedom.

    d are those of the own variance and d0 those of the predicted one (Smyth, Linear models and empirical Bayes methods,
    Statistical Applications in Genetics and Molecular Biology 3, 2004, section 4). `own` is kept where s^2 / s0^2
    exceeds the 1 - OUTLYING quantile of F(d, d0): a mean of both would be too small for it (Phipson et al., Robust
    hyperparameter estimation protects against hypervariable genes, Annals of Applied Statistics 10, 2016).
    """
    d0, d = predicted.degrees_of_freedom, own.degrees_of_freedom
    if special.fdtrc(d, d0, (own.share / predicted.share) ** 2) < OUTLYING:
        return own
    return Variation(math.sqrt((d0 * predicted.share**2 + d * own.share**2) / (d0 + d)), d0 + d)


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


def fit_prior(cases: Sequence[Observed]) -> Prior | None:
    """Fits the prior to all cases that vary, in their pairs and between processes; None for fewer than MIN_CASES.

    Each log s^2, with the bias of its degrees of freedom removed (digamma), is regressed on the log of the noise of the
    pairs, as the `trend` of limma regresses it on a covariate. d0 follows from the scatter about the trend, beyond that
    of a chi-square distribution: trigamma(d0 / 2) = scatter - mean trigamma(d / 2). No scatter beyond means that all
    values of all cases are of one variance, so d0 is at most the sum of d, as in limma. A case far from the trend
    widens the scatter, lowers d0 and thereby only weakens the shrinking of the others.
    """
    cases = [case for case in cases if case.variation.share > 0 and case.pair_noise > 0]
    if len(cases) < MIN_CASES:
        return None
    noises = np.array([case.pair_noise for case in cases])
    variances = np.array([case.variation.share**2 for case in cases])
    half = np.array([case.variation.degrees_of_freedom for case in cases]) / 2
    known = np.log(variances) - special.digamma(half) + np.log(half)
    covariate = np.log(noises)
    design = np.column_stack([np.ones(len(cases)), covariate])
    (level, slope), *_ = np.linalg.lstsq(design, known, rcond=None)
    scatter = float(np.sum((known - design @ [level, slope]) ** 2)) / (len(cases) - 2)
    beyond = scatter - float(np.mean(special.polygamma(1, half)))
    most = float(2 * np.sum(half))
    worth = min(most, 2 * _inverse_trigamma(beyond)) if beyond > 0 else most
    level += special.digamma(worth / 2) - math.log(worth / 2)  # the mean of log s^2 over cases is above log s0^2
    return Prior(float(level), float(slope), worth, float(min(noises)))


def _inverse_trigamma(value: float) -> float:
    """Solves trigamma(x) = value by Newton's method on 1 / trigamma, which is nearly linear (Smyth, 2004)."""
    x = 0.5 + 1 / value
    for _ in range(_NEWTON_STEPS):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) < 1e-9 * x:
            break
    return x

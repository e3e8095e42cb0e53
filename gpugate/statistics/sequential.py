"""A sequential test of a change: 0 against ALTERNATIVE, on one mean per process. Pure statistics on log-ratios.

Wald's sequential probability ratio test (Sequential tests of statistical hypotheses, Annals of Mathematical Statistics
16, 1945) takes one process after another: it ends above log((1 - MISS) / FALSE_ALARM) with a change, and below
log(MISS / (1 - FALSE_ALARM)) without one. The means of n processes are normal about mu, and their variance is not
known: its prior is a scaled inverse chi-square distribution about the predicted variance s0^2, worth PRIOR_WORTH = d0
further processes. With Q = d0 s0^2 + sum((x - mean)^2), the marginal likelihood of mu is Student's t,
(Q + n (mean - mu)^2)^(-(d0 + n) / 2) (Gelman et al., Bayesian Data Analysis, 3rd ed., 2013, section 3.3), and

    log ratio = (d0 + n) / 2 * log((Q + n (mean - mu0)^2) / (Q + n (mean - mu1)^2))

where mu0 <= 0 and mu1 >= ALTERNATIVE are those of their range with the largest likelihood, so that a change far beyond
ALTERNATIVE is one as well (a generalized ratio: Lai, Nearly optimal sequential tests of composite hypotheses, Annals of
Statistics 16, 1988). FASTER is the mirror. Wald's bounds hold for given mu0 and mu1. For this ratio, a simulation finds
at most 0.5 % false alarms and at most MISS acquittals (tests/engine/statistics/test_sequential.py).

The numbers were chosen on trials of CPUs; results/duets.md says how, and tests them on trials of GPUs. FALSE_ALARM is
so small since a few cases vary far more than predicted, and a change needs DECIDING_PROCESSES for the same reason: two
means have one degree of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from gpugate.statistics.intervals import BUILD_SPREAD, CONFIDENCE, PRIOR_WORTH, Estimate, t_quantile, variance_of_pairs
from gpugate.statistics.policy import DECIDING_PROCESSES, MISS

ALTERNATIVE = 0.03  # a slowdown, as a share
FALSE_ALARM = 0.002  # of one direction, as MISS
MOST_PROCESSES = 12  # of a duet; a change needs DECIDING_PROCESSES
_CHANGE = math.log1p(ALTERNATIVE)
_ALARM, _ACQUITTAL = math.log((1 - MISS) / FALSE_ALARM), math.log(MISS / (1 - FALSE_ALARM))

Decision = Literal["slower", "faster", "same", "undecided"]


@dataclass(frozen=True)
class ProcessMean:
    """The log-ratio of one process, and the variance that the noise of its pairs alone gives it."""

    log_ratio: float
    variance: float


@dataclass(frozen=True)
class ProcessMeans:
    """The processes of a duet so far: their number, their mean log-ratio and Q, see above."""

    processes: int
    mean: float
    squares: float

    @property
    def degrees_of_freedom(self) -> float:
        return PRIOR_WORTH + self.processes - 1

    def log_ratio(self, sign: int) -> float:
        """Computes the log of the likelihood ratio of a slowdown (`sign` 1) or of a speedup (-1) over no such one."""
        mean = sign * self.mean
        without = self.squares + self.processes * (mean - min(0.0, mean)) ** 2
        with_change = self.squares + self.processes * (mean - max(_CHANGE, mean)) ** 2
        return (PRIOR_WORTH + self.processes) / 2 * math.log(without / with_change)

    @property
    def decision(self) -> Decision:
        ratios = self.log_ratio(1), self.log_ratio(-1)
        if self.processes >= DECIDING_PROCESSES and max(ratios) >= _ALARM:
            return "slower" if ratios[0] >= _ALARM else "faster"
        return "same" if max(ratios) <= _ACQUITTAL else "undecided"

    @property
    def ratio(self) -> Estimate:
        """The head's time over the base's, with the interval of Student's t about the mean."""
        standard_error = math.sqrt(self.squares / self.degrees_of_freedom / self.processes)
        half_width = t_quantile(CONFIDENCE, self.degrees_of_freedom) * standard_error
        return Estimate(*(math.exp(self.mean + sign * half_width) for sign in (0, -1, 1)))

    @property
    def detectable(self) -> float:
        """The slowdown, a share, that processes as these, at least DECIDING_PROCESSES of them, find with a probability
        of about 1 - MISS. A slowdown below ALTERNATIVE may end the test as none."""
        sd, count = math.sqrt(self.squares / self.degrees_of_freedom), max(DECIDING_PROCESSES, self.processes)
        per_process = (PRIOR_WORTH + count - 1) / count * math.expm1(2 * _ALARM / (PRIOR_WORTH + count))
        least = sd * (math.sqrt(per_process) + float(special.ndtri(1 - MISS)) / math.sqrt(count))
        return max(ALTERNATIVE, math.expm1(least))


def mean_of_pairs(log_ratios: Sequence[Sequence[float]]) -> ProcessMean:
    """Computes the median of all pairs of a process, with its variance: that of many pairs, which is never too small.

    Each sequence has the pairs of one build. Raises ValueError without any pair.
    """
    taken = [[*map(float, values)] for values in log_ratios if len(values)]
    if not taken:
        raise ValueError("no samples: a process mean needs at least one pair")
    return ProcessMean(float(np.median(np.concatenate(taken))), variance_of_pairs(taken))


def collect_evidence(means: Sequence[ProcessMean]) -> ProcessMeans:
    """Collects the evidence of all means. Raises ValueError for none."""
    values = np.array([one.log_ratio for one in means])
    if not len(values):
        raise ValueError("no processes: a duet needs at least one")
    predicted = BUILD_SPREAD**2 + float(np.mean([one.variance for one in means]))
    squares = PRIOR_WORTH * predicted + float(np.sum((values - values.mean()) ** 2))
    return ProcessMeans(len(values), float(values.mean()), squares)


def decide_in_turn(means: Sequence[ProcessMean]) -> ProcessMeans:
    """Takes one mean after another until the test decides; returns the evidence by then. Raises ValueError for none."""
    found = collect_evidence(means[:1])
    for count in range(2, len(means) + 1):
        if found.decision != "undecided":
            break
        found = collect_evidence(means[:count])
    return found

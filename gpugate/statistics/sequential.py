"""A sequential test of a change: 0 against ALTERNATIVE, on one mean per process. Pure statistics on log-ratios.

Wald's sequential probability ratio test (Sequential tests of statistical hypotheses, Annals of Mathematical Statistics
16, 1945) takes one process after another: it ends above log((1 - MISS) / FALSE_ALARM) with a change, and below
log(MISS / (1 - FALSE_ALARM)) without one. The means of n processes are normal about mu, and their variance is not
known: its prior is a scaled inverse chi-square distribution about the predicted variance s0^2, worth PRIOR_WORTH = d0
further processes. With the Q of `Means`, the marginal likelihood of mu is Student's t,
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
from typing import Literal

from scipy import special

from gpugate.statistics.intervals import PRIOR_WORTH, Means
from gpugate.statistics.policy import DECIDING_PROCESSES, MISS

ALTERNATIVE = 0.03  # a slowdown, as a share
FALSE_ALARM = 0.002  # of one direction, as MISS
MOST_PROCESSES = 12  # of a duet; a change needs DECIDING_PROCESSES
_CHANGE = math.log1p(ALTERNATIVE)
_ALARM, _ACQUITTAL = math.log((1 - MISS) / FALSE_ALARM), math.log(MISS / (1 - FALSE_ALARM))

Decision = Literal["slower", "faster", "same", "undecided"]


def log_likelihood_ratio(means: Means, sign: int) -> float:
    """Computes the log of the likelihood ratio of a slowdown (`sign` 1) or of a speedup (-1) over no such one."""
    mean = sign * means.mean
    without = means.squares + means.count * (mean - min(0.0, mean)) ** 2
    with_change = means.squares + means.count * (mean - max(_CHANGE, mean)) ** 2
    return (PRIOR_WORTH + means.count) / 2 * math.log(without / with_change)


def is_alarming(means: Means) -> bool:
    """True where the processes so far would show a slowdown, if they were enough: no decision yet. It was true of 1 of
    326 stored duets of unchanged code by their first process, and of none of 122 by two."""
    return log_likelihood_ratio(means, 1) >= _ALARM


def decide(means: Means) -> Decision:
    """Decides by the processes of a duet so far."""
    ratios = log_likelihood_ratio(means, 1), log_likelihood_ratio(means, -1)
    if means.count >= DECIDING_PROCESSES and max(ratios) >= _ALARM:
        return "slower" if ratios[0] >= _ALARM else "faster"
    return "same" if max(ratios) <= _ACQUITTAL else "undecided"


def detectable_change(means: Means) -> float:
    """Computes the slowdown, a share, that processes as these, at least DECIDING_PROCESSES of them, find with a
    probability of about 1 - MISS. A slowdown below ALTERNATIVE may end the test as none."""
    sd, count = math.sqrt(means.squares / means.degrees_of_freedom), max(DECIDING_PROCESSES, means.count)
    per_process = (PRIOR_WORTH + count - 1) / count * math.expm1(2 * _ALARM / (PRIOR_WORTH + count))
    least = sd * (math.sqrt(per_process) + float(special.ndtri(1 - MISS)) / math.sqrt(count))
    return max(ALTERNATIVE, math.expm1(least))

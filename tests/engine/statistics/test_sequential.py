"""The sequential test of a duet: its decisions on given means, and its error rates on simulated processes.

The simulated processes vary as no trial does that the numbers of the test were chosen on.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from gpugate.statistics.intervals import BUILD_SPREAD, PRIOR_WORTH, Means, PairsMean, collect_means, mean_of_pairs
from gpugate.statistics.policy import MISS
from gpugate.statistics.sequential import ALTERNATIVE, MOST_PROCESSES, decide, detectable_change, log_likelihood_ratio

SEED = 20261127


def means(*percents: float, sd_percent: float = 0.5) -> list[PairsMean]:
    return [PairsMean(math.log1p(one / 100), (sd_percent / 100) ** 2) for one in percents]


def take_in_turn(processes: Sequence[PairsMean]) -> Means:
    """Takes one process after another until the test decides."""
    found = [collect_means(processes[:count]) for count in range(1, len(processes) + 1)]
    return next((means for means in found if decide(means) != "undecided"), found[-1])


@pytest.mark.parametrize(
    ("found", "decision", "processes"),
    [
        (means(0.0), "same", 1),
        (means(1.0, 0.4), "same", 2),
        (means(5.0, 5.3, 4.8), "slower", 3),
        (means(-5.0, -5.3, -4.8), "faster", 3),
        (means(2.4, 2.6, 2.2, 2.5), "slower", 4),
        (means(50.0, 50.0, 51.0), "slower", 3),  # far beyond the alternative
        (means(50.0, 50.0), "undecided", 2),  # a change needs more processes
        (means(6.0, 5.0, -2.0), "undecided", 3),  # which differ too much
        (means(4.0, 4.5, 5.0, sd_percent=3.0), "undecided", 3),  # the pairs predict that they may differ
        (means(4.5, -0.5, 4.8, 5.2, 4.4, 4.9), "slower", 6),  # no process has a veto
    ],
)
def test_the_decision_and_when_it_is_taken(found: Sequence[PairsMean], decision: str, processes: int) -> None:
    evidence = take_in_turn(found)
    assert (decide(evidence), evidence.count) == (decision, processes)


def test_the_likelihood_ratio_is_that_of_students_t() -> None:
    """Two means between both hypotheses: the density of t with the pool's variance, at 0 and at the alternative."""
    values = [0.01, 0.016]
    evidence = collect_means([PairsMean(one, 1e-4) for one in values])
    known = PRIOR_WORTH * (BUILD_SPREAD**2 + 1e-4)
    apart = [known + sum((value - at) ** 2 for value in values) for at in (0.0, math.log1p(ALTERNATIVE))]
    assert log_likelihood_ratio(evidence, 1) == pytest.approx((PRIOR_WORTH + 2) / 2 * math.log(apart[0] / apart[1]))


def test_a_mean_of_pairs_ignores_a_few_that_are_far_off() -> None:
    found = mean_of_pairs([[0.01, 0.012, 0.008, 0.011, 0.009], [0.03, 0.032, 0.028, 0.5, 0.03]])
    assert found.log_ratio == pytest.approx(0.02, abs=0.009)
    assert found.variance < 0.002**2  # of pairs alone: builds differ by 2 %
    with pytest.raises(ValueError, match="at least one pair"):
        mean_of_pairs([[], []])
    with pytest.raises(ValueError, match="at least one"):
        collect_means([])


def test_the_interval_is_students_t_and_what_would_have_been_seen_is_beyond_it() -> None:
    quiet, noisy = collect_means(means(1.0, 1.2, 0.8)), collect_means(means(1.0, 4.0, -2.0))
    assert quiet.ratio.low < 1.01 < quiet.ratio.high < noisy.ratio.high
    assert detectable_change(quiet) == ALTERNATIVE < 0.1 < detectable_change(noisy) < 0.3
    half, standard_error = math.log(quiet.ratio.high / quiet.ratio.low) / 2, math.sqrt(quiet.squares / 4 / 3)
    assert half == pytest.approx(3.747 * standard_error, rel=1e-3)  # t(4) at 99 %


def simulate(change: float, sd: float, cases: int, known: float = 4.0) -> Counter[str]:
    """Decides duets of cases whose pairs predict `sd`; the variance of their processes is an inverse chi-square one."""
    draw = np.random.default_rng(SEED)
    found: Counter[str] = Counter()
    for _ in range(cases):
        own_sd = sd * math.sqrt(known / draw.chisquare(known))
        values = draw.normal(math.log1p(change), own_sd, MOST_PROCESSES)
        found[decide(take_in_turn([PairsMean(one, sd**2) for one in values]))] += 1
    return found


@pytest.mark.parametrize("sd", [0.002, 0.03])
def test_unchanged_code_is_slower_in_at_most_one_duet_of_two_hundred(sd: float) -> None:
    found = simulate(0.0, sd, 2000)
    assert found["slower"] <= 10
    assert found["faster"] <= 10
    assert found["same"] > 1900 or sd > 0.01


@pytest.mark.parametrize(("change", "sd", "share"), [(0.05, 0.005, 0.98), (0.05, 0.015, 0.95), (0.03, 0.005, 0.9)])
def test_slower_code_is_found(change: float, sd: float, share: float) -> None:
    found = simulate(change, sd, 1000)
    assert found["slower"] >= 1000 * share
    assert found["same"] <= 1000 * MISS

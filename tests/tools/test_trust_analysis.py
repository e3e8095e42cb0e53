"""Rates, their intervals and detection limits against textbook numbers and simulated trials."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from tests.support.simulated_trials import Noise, trials
from tools.trust.analysis import RuleTrust, TrustReport, analyse, between_run_cv
from tools.trust.rates import Rate, design_effect, korn_graubard, rate_of
from tools.trust.trials import SLOWDOWNS, Trial

DRAWS = 400


def judged(taken: Sequence[Trial], alarms: Callable[[Trial], bool]) -> TrustReport:
    return analyse(taken, {"gpugate": [alarms(trial) for trial in taken]}, "")


def slower_by(limit: float) -> Callable[[Trial], bool]:
    """A stand-in for our rule: the median of the builds' median log-ratios."""

    def alarms(trial: Trial) -> bool:
        return float(np.median([np.median(build.log_ratios) for build in trial.instances])) < -limit

    return alarms


def split(alarms: int, trials: int, processes: int) -> list[list[bool]]:
    """Trials dealt out to processes one after the other, the alarms first."""
    dealt: list[list[bool]] = [[] for _ in range(processes)]
    for number in range(trials):
        dealt[number % processes].append(number < alarms)
    return dealt


def of(alarms: int, trials: int) -> Rate:
    return rate_of(split(alarms, trials, trials))


def curve(shares: dict[float, float], trials: int = 100) -> dict[float, Rate]:
    return {slowdown: of(round(share * trials), trials) for slowdown, share in shares.items()}


def correlated(draw: np.random.Generator, share: float, correlation: float) -> list[list[bool]]:
    """20 processes of 20 trials each, of a beta-binomial distribution."""
    alike = 1 / correlation - 1
    shares = draw.beta(share * alike, (1 - share) * alike, 20)
    return [(draw.random(20) < one).tolist() for one in shares]


@pytest.mark.parametrize(
    ("alarms", "trials", "low", "high"),
    [(0, 200, 0.0, 0.01828), (1, 200, 0.0001266, 0.02754), (10, 10, 0.69150, 1.0), (4, 20, 0.05733, 0.43661)],
)
def test_intervals_of_independent_trials_are_clopper_and_pearsons(
    alarms: int, trials: int, low: float, high: float
) -> None:
    rate = of(alarms, trials)
    assert (rate.low, rate.high) == pytest.approx((low, high), rel=1e-3)


def test_no_alarm_in_few_processes_says_less_than_in_many() -> None:
    few, many = rate_of(split(0, 200, 5)), rate_of(split(0, 200, 50))
    size = 200 * (stats.t.ppf(0.975, 199) / stats.t.ppf(0.975, 4)) ** 2
    assert few.high == pytest.approx(1 - 0.025 ** (1 / size))
    assert 0.01828 < many.high < few.high


def test_the_design_effect_is_that_of_a_one_way_analysis_of_variance() -> None:
    draw = np.random.default_rng(3)
    groups = [(draw.random(size) < share).astype(float) for size, share in ((4, 0.1), (9, 0.7), (15, 0.9), (6, 0.2))]
    sizes = np.array([len(group) for group in groups])
    size = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(sizes) - 1)
    variance_ratio = stats.f_oneway(*groups).statistic
    expected = 1 + ((sizes**2).sum() / sizes.sum() - 1) * (variance_ratio - 1) / (variance_ratio + size - 1)
    assert expected > 2
    assert design_effect([int(group.sum()) for group in groups], sizes.tolist()) == pytest.approx(expected)


def test_the_interval_holds_where_processes_differ() -> None:
    draw = np.random.default_rng(1)
    rates = [rate_of(correlated(draw, 0.2, correlation=0.2)) for _ in range(DRAWS)]
    assert np.mean([rate.low <= 0.2 <= rate.high for rate in rates]) >= 0.93


@pytest.mark.parametrize(
    ("shares", "caught"),
    [
        ({0.0: 0.0, 0.01: 0.94, 0.02: 0.95, 0.05: 1.0}, 0.02),
        ({0.0: 0.0, 0.01: 0.98, 0.02: 0.90, 0.05: 0.99}, 0.05),  # a hole below is no catch
        ({0.0: 0.0, 0.01: 0.98, 0.05: 0.94}, None),
        ({0.0: 1.0}, None),  # nothing tried but A/A
        ({0.0: 1.0, 0.01: 1.0}, None),  # an alarm where nothing changed detects nothing
    ],
)
def test_a_slowdown_is_caught_from_the_size_on_at_which_95_percent_are(
    shares: dict[float, float], caught: float | None
) -> None:
    assert RuleTrust("", curve(shares)).smallest_caught == caught


def test_larger_slowdowns_are_caught_more_often_and_no_slowdown_hardly_ever() -> None:
    taken = trials(Noise(process=0.001, instance=0.005, pair=0.005), processes=30, repeats=3)
    (case,) = judged(taken, slower_by(0.01)).cases
    shares = [rate.share for rate in case.alarms.rates.values()]
    assert list(case.alarms.rates) == list(SLOWDOWNS)
    assert shares == sorted(shares)
    assert shares[0] <= 0.01
    assert shares[2] == pytest.approx(0.5, abs=0.15)  # 1 % is where this rule tosses a coin
    assert case.alarms.smallest_caught == 0.02


def test_alarms_are_counted_by_case_slowdown_and_process() -> None:
    taken = trials(Noise(), [0.0, 0.1], processes=4, repeats=3)
    (case,) = judged(taken, lambda trial: trial.process % 2 == 1 and trial.slowdown == 0).cases
    quiet, slowed = case.alarms.rates.values()
    assert (quiet.alarms, quiet.trials) == (6, 12)
    assert (quiet.low, quiet.high) == korn_graubard(6, 12, 4, effect=3)
    assert (slowed.alarms, slowed.trials) == (0, 12)
    assert (case.trials, case.processes, case.median_trial_s) == (24, 4, 3.5)


def test_the_between_run_cv_is_the_spread_of_processes_in_a_a_trials() -> None:
    found = between_run_cv(trials(Noise(process=0.004, pair=0.001), processes=300, repeats=2))
    assert found == pytest.approx(0.004, rel=0.1)
    assert between_run_cv(trials(Noise(process=0.004), [0.0], processes=1)) is None
    assert between_run_cv(trials(Noise(process=0.004), [0.01], processes=9)) is None


def named(case_ids: Sequence[str], **kwargs) -> list[Trial]:
    return [trial for number, name in enumerate(case_ids) for trial in trials(Noise(), case_id=name, **kwargs)]


def test_a_group_pools_the_trials_of_its_cases() -> None:
    taken = named(["net/fast/cpu", "net/slow/cuda", "net/sure/cpu"], processes=3, repeats=2)
    report = judged(taken, lambda trial: trial.case_id == "net/sure/cpu")
    assert [(group.name, group.cases) for group in report.groups] == [("net/cpu", 2), ("net/cuda", 1)]
    pooled = report.groups[0].rules[0].false_alarms
    assert pooled
    assert (pooled.alarms, pooled.trials) == (6, 12)
    assert [case.case_id for case in report.cases] == ["net/fast/cpu", "net/sure/cpu", "net/slow/cuda"]

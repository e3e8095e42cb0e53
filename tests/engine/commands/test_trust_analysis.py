"""Rates, their intervals and detection limits against textbook numbers and simulated trials."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from gpugate.commands.trust.analysis import MAX_GROUPS, REST, TrustReport, analyse, between_run_cv
from gpugate.commands.trust.detection import minimum_detectable_effect, smallest_caught
from gpugate.commands.trust.rates import Rate, design_effect, korn_graubard, rate_of, sum_of_rates
from gpugate.commands.trust.rival_rules import RIVALS, Rule
from gpugate.commands.trust.trial import SLOWDOWNS, Trial
from gpugate.store.codec import from_json, to_json
from tests.support.simulated_trials import Noise, trials

DRAWS = 400


def slower_by(limit: float) -> Rule:
    """A stand-in for our rule: the median of the instances' median log-ratios."""

    def alarms(trial: Trial) -> bool:
        return float(np.median([np.median(instance.log_ratios) for instance in trial.instances])) < -limit

    return Rule("gpugate", "a stand-in", alarms)


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
    assert (rate.low_by_process, rate.high_by_process) == pytest.approx((low, high), rel=1e-3)
    assert rate.design_effect == 1.0


def test_no_alarm_in_few_processes_says_less_than_in_many() -> None:
    few, many = rate_of(split(0, 200, 5)), rate_of(split(0, 200, 50))
    assert few.high == many.high == pytest.approx(0.01828, rel=1e-3)
    size = 200 * (stats.t.ppf(0.975, 199) / stats.t.ppf(0.975, 4)) ** 2
    assert few.high_by_process == pytest.approx(1 - 0.025 ** (1 / size))
    assert many.high < many.high_by_process < few.high_by_process


def test_trials_that_say_as_much_as_20_independent_ones_have_the_interval_of_20() -> None:
    effect = 2 * (stats.t.ppf(0.975, 39) / stats.t.ppf(0.975, 9)) ** 2
    expected = stats.binomtest(5, 20).proportion_ci(0.95, method="exact")
    assert korn_graubard(10, 40, 10, effect) == pytest.approx((expected.low, expected.high))


def test_one_process_tells_nothing_about_others() -> None:
    rate = rate_of([[True, False, False, False]])
    assert (rate.low_by_process, rate.high_by_process, rate.design_effect) == (0.0, 1.0, None)


def test_processes_that_alarm_always_or_never_count_once_each() -> None:
    assert design_effect([10, 0, 0, 10, 0], [10] * 5) == pytest.approx(10)
    assert design_effect([3, 3, 3], [10, 10, 10]) == 1.0
    assert design_effect([0, 0], [10, 10]) is None
    assert design_effect([10, 10], [10, 10]) is None


def test_the_design_effect_is_that_of_a_one_way_analysis_of_variance() -> None:
    draw = np.random.default_rng(3)
    groups = [(draw.random(size) < share).astype(float) for size, share in ((4, 0.1), (9, 0.7), (15, 0.9), (6, 0.2))]
    sizes = np.array([len(group) for group in groups])
    size = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(sizes) - 1)
    variance_ratio = stats.f_oneway(*groups).statistic
    expected = 1 + ((sizes**2).sum() / sizes.sum() - 1) * (variance_ratio - 1) / (variance_ratio + size - 1)
    assert expected > 2
    assert design_effect([int(group.sum()) for group in groups], sizes.tolist()) == pytest.approx(expected)


def test_the_interval_by_process_holds_where_processes_differ_and_the_other_does_not() -> None:
    draw = np.random.default_rng(1)
    rates = [rate_of(correlated(draw, 0.2, correlation=0.2)) for _ in range(DRAWS)]
    assert np.mean([rate.low_by_process <= 0.2 <= rate.high_by_process for rate in rates]) >= 0.93
    assert np.mean([rate.low <= 0.2 <= rate.high for rate in rates]) <= 0.75


def test_an_interval_of_independent_trials_is_wrong_at_most_5_times_in_100() -> None:
    draw = np.random.default_rng(2)
    rates = [rate_of((draw.random((20, 10)) < 0.02).tolist()) for _ in range(DRAWS)]
    assert np.mean([rate.low <= 0.02 <= rate.high for rate in rates]) >= 0.95
    assert all(rate.low_by_process <= rate.low and rate.high <= rate.high_by_process for rate in rates)


def test_a_rate_needs_trials() -> None:
    with pytest.raises(ValueError, match="no trials"):
        rate_of([[], []])
    assert rate_of([[], [True], [False]]).processes == 2


def test_the_sum_of_rates_adds_what_each_may_be_off_by_in_squares() -> None:
    one, two = of(4, 100), of(3, 50)
    total, low, high = sum_of_rates([one, two])
    assert total == pytest.approx(0.1)
    assert high == pytest.approx(0.1 + math.sqrt((one.high - 0.04) ** 2 + (two.high - 0.06) ** 2))
    assert low == pytest.approx(0.1 - math.sqrt((0.04 - one.low) ** 2 + (0.06 - two.low) ** 2))
    assert sum_of_rates([one]) == pytest.approx((0.04, one.low, one.high))
    assert sum_of_rates([]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("shares", "caught"),
    [
        ({0.0: 0.0, 0.01: 0.94, 0.02: 0.95, 0.05: 1.0}, 0.02),
        ({0.0: 0.0, 0.01: 0.98, 0.02: 0.90, 0.05: 0.99}, 0.05),  # a hole below is no catch
        ({0.0: 0.0, 0.01: 0.98, 0.05: 0.94}, None),
        ({0.0: 1.0}, None),  # nothing tried but A/A
        ({0.0: 1.0, 0.01: 1.0}, 0.01),
    ],
)
def test_a_slowdown_is_caught_from_the_size_on_at_which_95_percent_are(
    shares: dict[float, float], caught: float | None
) -> None:
    assert smallest_caught(curve(shares)) == caught
    assert (minimum_detectable_effect(curve(shares)) is None) == (caught is None or shares[0.0] == 1.0)


@pytest.mark.parametrize(
    ("shares", "crossing"),
    [
        ({0.0: 0.0, 0.01: 0.5, 0.02: 1.0}, 0.019),
        ({0.0: 0.05, 0.01: 1.0}, 0.009 / 0.95),  # false alarms are where the curve begins
        ({0.01: 0.97, 0.02: 1.0}, 0.01),  # nothing is known below
        ({0.0: 0.0, 0.01: 0.98, 0.02: 0.90, 0.05: 0.99}, 0.02 + 0.03 * 0.01 / 0.05),  # 0.98 and 0.90 are both 0.94
    ],
)
def test_between_sizes_the_curve_is_straight_and_never_falls(shares: dict[float, float], crossing: float) -> None:
    assert minimum_detectable_effect(curve(shares)) == pytest.approx(crossing)


def test_a_size_with_more_trials_weighs_more_where_the_curve_would_fall() -> None:
    rates = {0.0: of(0, 100), 0.01: of(98, 100), 0.02: of(270, 300), 0.05: of(100, 100)}
    pooled = 368 / 400
    assert minimum_detectable_effect(rates) == pytest.approx(0.02 + 0.03 * (0.95 - pooled) / (1 - pooled))


def test_exactly_95_percent_everywhere_is_caught() -> None:
    rates = curve({0.0: 0.0, 0.01: 0.95, 0.02: 0.95, 0.03: 0.95}, trials=20)
    assert minimum_detectable_effect(rates) == pytest.approx(0.01)


def test_larger_slowdowns_are_caught_more_often_and_no_slowdown_hardly_ever() -> None:
    taken = trials(Noise(process=0.001, instance=0.005, pair=0.005), processes=30, repeats=3)
    (case,) = analyse(taken, [slower_by(0.01)]).cases
    shares = [detection.rate.share for detection in case.rules[0].detections]
    assert [detection.slowdown for detection in case.rules[0].detections] == list(SLOWDOWNS)
    assert shares == sorted(shares)
    assert shares[0] <= 0.01
    assert shares[2] == pytest.approx(0.5, abs=0.15)  # 1 % is where this rule tosses a coin
    assert case.rules[0].smallest_caught == 0.02
    assert 0.01 < (case.rules[0].minimum_detectable_effect or 0) < 0.02


def test_the_interval_of_false_alarms_holds_for_trials_of_processes_that_differ() -> None:
    noise, rule = Noise(process=0.005, instance=0.003, pair=0.001), slower_by(0.005)
    many = analyse(trials(noise, [0.0], processes=2000, repeats=1, seed=99), [rule]).cases[0].rules[0].false_alarms
    small = [analyse(trials(noise, [0.0], processes=40, repeats=4, seed=seed), [rule]) for seed in range(80)]
    rates = [report.cases[0].rules[0].false_alarms for report in small]
    assert many
    inside = [rate.low_by_process <= many.share <= rate.high_by_process for rate in rates if rate]
    independent = [rate.low <= many.share <= rate.high for rate in rates if rate]
    assert np.mean(inside) >= 0.92
    assert np.mean(independent) <= 0.85


def test_alarms_are_counted_by_case_slowdown_and_process() -> None:
    taken = trials(Noise(), [0.0, 0.1], processes=4, repeats=3)
    odd = Rule("gpugate", "", lambda trial: trial.process % 2 == 1 and trial.slowdown == 0)
    (case,) = analyse(taken, [odd]).cases
    quiet, slowed = case.rules[0].detections
    assert (quiet.rate.alarms, quiet.rate.trials, quiet.rate.processes) == (6, 12, 4)
    assert quiet.rate.design_effect == pytest.approx(3)
    assert (slowed.rate.alarms, slowed.rate.trials) == (0, 12)
    assert (case.trials, case.processes, case.median_trial_s) == (24, 4, 3.5)


def test_the_between_run_cv_is_the_spread_of_processes_in_a_a_trials() -> None:
    found = between_run_cv(trials(Noise(process=0.004, pair=0.001), processes=300, repeats=2))
    assert found == pytest.approx(0.004, rel=0.1)
    assert between_run_cv(trials(Noise(process=0.004), [0.0], processes=1)) is None
    assert between_run_cv(trials(Noise(process=0.004), [0.01], processes=9)) is None


def test_two_processes_differ_by_their_distance_over_root_two() -> None:
    taken = trials(Noise(process=0.004), [0.0], processes=2, repeats=1, instances=1, pairs=1)
    apart = abs(taken[0].instances[0].log_ratios[0] - taken[1].instances[0].log_ratios[0])
    assert between_run_cv(taken) == pytest.approx(apart / math.sqrt(2))


def test_slowed_trials_are_not_in_the_between_run_cv() -> None:
    quiet = trials(Noise(process=0.001), [0.0], processes=20, repeats=1)
    assert between_run_cv([*quiet, *trials(Noise(), [0.1], processes=1)]) == between_run_cv(quiet)


def named(case_ids: Sequence[str], **kwargs) -> list[Trial]:
    return [trial for number, name in enumerate(case_ids) for trial in trials(Noise(), case_id=name, **kwargs)]


def test_a_group_pools_the_trials_of_its_cases() -> None:
    taken = named(["net/fast/cpu", "net/slow/cuda", "net/sure/cpu"], processes=3, repeats=2)
    report = analyse(taken, [Rule("gpugate", "", lambda trial: trial.case_id == "net/sure/cpu")])
    assert [(group.name, group.cases) for group in report.groups] == [("net/cpu", 2), ("net/cuda", 1)]
    pooled = report.groups[0].rules[0].false_alarms
    assert pooled
    assert (pooled.alarms, pooled.trials, pooled.processes) == (6, 12, 3)
    assert [case.case_id for case in report.cases] == ["net/fast/cpu", "net/sure/cpu", "net/slow/cuda"]


def test_a_family_has_a_group_for_each_of_its_workloads() -> None:
    taken = named(["nets/deep/fast/cpu", "nets/wide/fast/cpu", "nets/wide/sure/cpu"], processes=2, repeats=1)
    groups = analyse(taken, [slower_by(0.01)]).groups
    assert [(group.name, group.cases) for group in groups] == [("nets/deep/cpu", 1), ("nets/wide/cpu", 2)]


def test_groups_can_be_named_by_the_caller_and_beyond_six_are_the_rest() -> None:
    names = [f"net{number}/fast/cpu" for number in range(MAX_GROUPS + 2)]
    taken = named(names, processes=2, repeats=1)
    rules = [slower_by(0.01)]
    assert [group.name for group in analyse(taken, rules, group_of=lambda case_id: "all").groups] == ["all"]
    groups = analyse(taken, rules).groups
    assert [group.name for group in groups] == [*(f"net{number}/cpu" for number in range(MAX_GROUPS - 1)), REST]
    assert groups[-1].cases == 3
    six = analyse(named(names[:MAX_GROUPS], processes=2, repeats=1), rules).groups
    assert [group.name for group in six] == [f"net{number}/cpu" for number in range(MAX_GROUPS)]


def test_a_night_has_the_sum_of_the_false_alarms_of_its_cases() -> None:
    taken = named(["a/x/cpu", "b/x/cpu"], processes=10, repeats=2)
    untried = trials(Noise(), [0.1], case_id="c/x/cpu")
    rule = Rule("gpugate", "", lambda trial: trial.case_id == "a/x/cpu" and trial.process == 0)
    (night,) = analyse([*taken, *untried], [rule]).nightly
    assert (night.cases, night.expected) == (2, pytest.approx(0.1))
    assert night.low < 0.1 < night.high < 2


def test_our_rule_comes_first_and_the_others_are_judged_alike() -> None:
    report = analyse(trials(Noise(pair=0.001)), [*RIVALS, slower_by(0.002)])
    names = ["gpugate", *(rule.name for rule in RIVALS)]
    assert list(report.sources) == names
    assert all([rule.rule for rule in judged.rules] == names for judged in (*report.cases, *report.groups))
    assert [night.rule for night in report.nightly] == names
    assert [rule.smallest_caught for rule in report.cases[0].rules[:2]] == [0.005, 0.1]


def test_a_report_survives_json() -> None:
    report = analyse(trials(Noise(process=0.01, pair=0.01)), [slower_by(0.01), *RIVALS], machine="a machine")
    assert from_json(TrustReport, json.loads(json.dumps(to_json(report)))) == report


def test_what_cannot_be_analysed_is_refused() -> None:
    taken, ours = trials(Noise(), processes=1, repeats=1), slower_by(0.01)
    with pytest.raises(ValueError, match="no trials"):
        analyse([], [ours])
    with pytest.raises(ValueError, match="no rule is named 'gpugate', only gpucheck"):
        analyse(taken, [RIVALS[1]])
    with pytest.raises(ValueError, match="two rules are named 'gpugate'"):
        analyse(taken, [ours, ours])
    with pytest.raises(ValueError, match="toy/fast/cpu has no pairs"):
        analyse([replace(taken[0], instances=())], [*RIVALS, Rule("gpugate", "", lambda trial: False)])

"""The rules of other tools: where each one begins to alarm, and what each is known to get wrong."""

from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.utils import parse_compare_fail
from scipy import stats

from gpugate.measurement.record import Pair, TimedBuild
from tests.support.simulated_trials import Noise, trials
from tests.support.tiny_project import ROOT
from tools.rival_rules import (
    RIVALS,
    main,
    mann_whitney_10_percent,
    median_5_percent,
    relative_noise,
    welch,
)
from tools.trust.trials import Trial

PAIRS_ONLY = Noise(pair=0.005)
INSTANCES_DIFFER = Noise(instance=0.005, pair=0.0005)


def trial(reference_ms: list[float], optimized_ms: list[float]) -> Trial:
    """The pairs in two instances, so that a rule that reads one instance misses some."""
    pairs = [Pair(*times, reference_first=True) for times in zip(reference_ms, optimized_ms, strict=True)]
    return Trial("toy/fast/cpu", 0, 0.0, (TimedBuild(True, tuple(pairs[:1])), TimedBuild(False, tuple(pairs[1:]))), 1.0)


def alarm_share(rule, noise: Noise, slowdown: float, processes: int = 50) -> float:
    found = [rule(one) for one in trials(noise, [slowdown], processes=processes)]
    return sum(found) / len(found)


def random_sides(seed: int) -> tuple[list[float], list[float]]:
    draw = np.random.default_rng(seed)
    slowdown = draw.choice([1.0, 1.05, 1.06])
    return draw.normal(10, 0.5, 7).tolist(), (slowdown * draw.normal(10, 0.5, 7)).tolist()


def test_median_5_percent_is_what_pytest_benchmark_decides() -> None:
    (check,) = [parse_compare_fail("median:5%")]
    for reference, optimized in map(random_sides, range(200)):
        medians = {"median": np.median(reference)}, {"median": np.median(optimized)}
        assert median_5_percent(trial(reference, optimized)) == (check.fails(medians[1], medians[0]) is not None)


def test_exactly_5_percent_is_no_alarm_and_any_more_is() -> None:
    assert not median_5_percent(trial([4.0, 4.0, 4.0], [4.2, 4.2, 4.2]))
    assert median_5_percent(trial([4.0, 4.0, 4.0], [4.2001, 4.2001, 4.2001]))


def test_gpucheck_needs_10_percent_between_the_medians() -> None:
    reference = [1.0, 1.01, 1.02, 1.03, 1.04]
    assert mann_whitney_10_percent(trial(reference, [1.1 * 1.02 + 1e-6] * 5))
    assert not mann_whitney_10_percent(trial(reference, [1.1 * 1.02 - 1e-6] * 5))


def test_gpucheck_needs_p_below_5_percent_on_both_sides_and_without_continuity_correction() -> None:
    separated, alone = [1.0, 1.01, 1.02], [1.4, 1.5, 1.6]
    assert mann_whitney_10_percent(trial(separated, alone))  # p = 0.0495; corrected 0.081, exact 0.1
    assert not mann_whitney_10_percent(trial(separated[:2], alone[:2]))
    assert not mann_whitney_10_percent(
        trial([1.0, 1.01, 1.02, 1.3], [1.2, 1.25, 1.4, 1.5])
    )  # p = 0.083, half of it one-sided


def test_gpucheck_is_silent_where_all_samples_are_equal_or_the_other_side_is_slower() -> None:
    assert not mann_whitney_10_percent(trial([2.0] * 8, [2.0] * 8))
    assert not mann_whitney_10_percent(trial([3.0] * 8, [2.0] * 8))


def test_welch_is_the_one_sided_test_with_satterthwaites_degrees_of_freedom() -> None:
    decided = []
    for reference, optimized in map(random_sides, range(300)):
        errors = [np.var(side, ddof=1) / len(side) for side in (reference, optimized)]
        statistic = (np.mean(optimized) - np.mean(reference)) / np.sqrt(sum(errors))
        freedom = sum(errors) ** 2 / sum(error**2 / (len(reference) - 1) for error in errors)
        decided.append(bool(stats.t.sf(statistic, freedom) < 0.01))
        assert welch(trial(reference, optimized)) == decided[-1]
    assert 20 < sum(decided) < 280


@pytest.mark.filterwarnings("error")
def test_welch_says_nothing_about_a_single_pair_or_a_faster_side() -> None:
    assert not welch(trial([1.0], [2.0]))
    assert not welch(trial([2.0, 2.1, 2.2], [1.0, 1.1, 1.2]))


def test_nvbench_compares_with_the_smaller_of_both_noises() -> None:
    quiet, loud = [9.9, 10.0, 10.1, 9.95, 10.05], [8.6, 10.6, 12.6, 9.6, 11.6]  # 0.8 % and 15 %, means 10 and 10.6
    assert relative_noise(trial(quiet, loud))
    assert relative_noise(trial([time - 1.2 for time in loud], quiet))
    assert not relative_noise(trial(loud, [time + 0.6 for time in loud]))


def test_nvbench_counts_the_sample_standard_deviation() -> None:
    reference = [9.0, 9.0, 10.0, 11.0, 11.0]  # 10 %; over n instead of n - 1 it would be 8.9 %
    assert not relative_noise(trial(reference, [1.095 * time for time in reference]))
    assert relative_noise(trial(reference, [1.105 * time for time in reference]))


def test_nvbench_knows_no_noise_below_five_samples_and_alarms_on_no_faster_side() -> None:
    assert not relative_noise(trial([1.0, 1.01, 1.0, 1.01], [2.0] * 4))
    assert relative_noise(trial([1.0, 1.01, 1.0, 1.01, 1.0], [2.0] * 5))
    assert not relative_noise(trial([2.0] * 5, [1.0] * 5))


@pytest.mark.parametrize("rule", RIVALS, ids=lambda rule: rule.name)
def test_a_trial_without_pairs_is_refused_by_its_name(rule) -> None:
    with pytest.raises(ValueError, match="toy/fast/cpu has no pairs"):
        rule.alarms(Trial("toy/fast/cpu", 0, 0.0, (TimedBuild(True, ()),), 1.0))


def test_welch_holds_its_level_on_independent_pairs_and_alarms_falsely_when_instances_differ() -> None:
    assert alarm_share(welch, PAIRS_ONLY, 0.0) <= 0.03
    assert alarm_share(welch, INSTANCES_DIFFER, 0.0) >= 0.1


def test_nvbench_alarms_falsely_when_instances_differ() -> None:
    assert alarm_share(relative_noise, INSTANCES_DIFFER, 0.0) >= 0.1


def test_median_5_percent_misses_1_percent_and_catches_10() -> None:
    assert alarm_share(median_5_percent, PAIRS_ONLY, 0.01) == 0
    assert alarm_share(median_5_percent, PAIRS_ONLY, 0.1) == 1


def test_gpucheck_misses_5_percent_and_catches_15() -> None:
    assert alarm_share(mann_whitney_10_percent, PAIRS_ONLY, 0.05) == 0
    assert alarm_share(mann_whitney_10_percent, PAIRS_ONLY, 0.15) == 1


def test_the_stored_comparison_is_that_of_the_stored_trials(tmp_path: Path) -> None:
    stored = ROOT / "results/h200/trust/gpu-bound"
    for path in stored.glob("trials-*.json"):
        (tmp_path / path.name).symlink_to(path)
    main([str(tmp_path)])
    assert (tmp_path / "rules.md").read_text() == (stored / "rules.md").read_text()
    assert (tmp_path / "rules.png").read_bytes().startswith(b"\x89PNG")

"""The rules of other tools decide as their authors wrote them."""

from pathlib import Path

import numpy as np
from pytest_benchmark.utils import parse_compare_fail
from scipy import stats

from gpugate.measurement.record import Pair, TimedBuild
from tests.support.tiny_project import ROOT
from tools.archive import list_files
from tools.rival_rules import (
    main,
    median_5_percent,
    relative_noise,
    welch,
)
from tools.trust.trials import Trial


def trial(reference_ms: list[float], optimized_ms: list[float]) -> Trial:
    """The pairs in two instances, so that a rule that reads one instance misses some."""
    pairs = [Pair(*times, reference_first=True) for times in zip(reference_ms, optimized_ms, strict=True)]
    return Trial("toy/fast/cpu", 0, 0.0, (TimedBuild(True, tuple(pairs[:1])), TimedBuild(False, tuple(pairs[1:]))), 1.0)


def random_sides(seed: int) -> tuple[list[float], list[float]]:
    draw = np.random.default_rng(seed)
    slowdown = draw.choice([1.0, 1.05, 1.06])
    return draw.normal(10, 0.5, 7).tolist(), (slowdown * draw.normal(10, 0.5, 7)).tolist()


def test_median_5_percent_is_what_pytest_benchmark_decides() -> None:
    (check,) = [parse_compare_fail("median:5%")]
    for reference, optimized in map(random_sides, range(200)):
        medians = {"median": np.median(reference)}, {"median": np.median(optimized)}
        assert median_5_percent(trial(reference, optimized)) == (check.fails(medians[1], medians[0]) is not None)


def test_welch_is_the_one_sided_test_with_satterthwaites_degrees_of_freedom() -> None:
    decided = []
    for reference, optimized in map(random_sides, range(300)):
        errors = [np.var(side, ddof=1) / len(side) for side in (reference, optimized)]
        statistic = (np.mean(optimized) - np.mean(reference)) / np.sqrt(sum(errors))
        freedom = sum(errors) ** 2 / sum(error**2 / (len(reference) - 1) for error in errors)
        decided.append(bool(stats.t.sf(statistic, freedom) < 0.01))
        assert welch(trial(reference, optimized)) == decided[-1]
    assert 20 < sum(decided) < 280


def test_nvbench_compares_with_the_smaller_of_both_noises() -> None:
    quiet, loud = [9.9, 10.0, 10.1, 9.95, 10.05], [8.6, 10.6, 12.6, 9.6, 11.6]  # 0.8 % and 15 %, means 10 and 10.6
    assert relative_noise(trial(quiet, loud))
    assert relative_noise(trial([time - 1.2 for time in loud], quiet))
    assert not relative_noise(trial(loud, [time + 0.6 for time in loud]))


def test_the_stored_comparison_is_that_of_the_stored_trials(tmp_path: Path) -> None:
    stored = ROOT / "results/h200/trust/gpu-bound"
    for path in list_files(stored, "trials-*.json"):
        (tmp_path / path.name).symlink_to(path)
    main([str(tmp_path)])
    assert (tmp_path / "rules.md").read_text() == (stored / "rules.md").read_text()
    assert (tmp_path / "rules.png").read_bytes().startswith(b"\x89PNG")

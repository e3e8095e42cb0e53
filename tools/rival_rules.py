"""Alarm rules of other tools, compared with ours on the same samples; each is a pure function of a trial.

`python -m tools.rival_rules DIR` judges the trials of `python -m tools.trust` in DIR, and writes rules.md and rules.png
there.

All of them take the times of both sides as two unpaired samples, pooled over every build of the trial, since that is
what they would be given. A sample of ours is the mean over a block of steps, so that it varies less than the single
steps that these tools collect: noise is no excuse for any of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from gpugate.report.table import plain
from tools.trust.analysis import TrustReport, analyse
from tools.trust.our_rule import our_alarms
from tools.trust.report import markdown
from tools.trust.trials import Trial, TrustError, read_all
from tools.trust_plot import png

Times = npt.NDArray[np.float64]  # ms per step, one entry per block, shape (pairs,)
MEDIAN_ALLOWED_PERCENT = 5
MANN_WHITNEY_ALPHA = 0.05
MANN_WHITNEY_MIN_RATIO = 1.1
WELCH_ALPHA = 0.01
NOISE_MIN_SAMPLES = 5


@dataclass(frozen=True)
class Rule:
    """A rule that raises an alarm from one trial alone. `source` is the source of its formula."""

    name: str
    source: str
    alarms: Callable[[Trial], bool]


def pool_times(trial: Trial) -> tuple[Times, Times]:
    """Times of the reference side and of the optimized side. Raises ValueError for a trial without pairs."""
    pairs = [pair for build in trial.instances for pair in build.pairs]
    if not pairs:
        raise ValueError(f"a trial of {trial.case_id} has no pairs: leave it out or raise its budget")
    return np.array([pair.reference_ms for pair in pairs]), np.array([pair.optimized_ms for pair in pairs])


def median_5_percent(trial: Trial) -> bool:
    """100 median(optimized) / median(reference) - 100 > 5.

    What `--benchmark-compare-fail=median:5%` does (pytest-benchmark 5.3.1, utils.py, `PercentageRegressionCheck`).
    """
    reference, optimized = pool_times(trial)
    return bool(np.median(optimized) / np.median(reference) * 100 - 100 > MEDIAN_ALLOWED_PERCENT)


def mann_whitney_10_percent(trial: Trial) -> bool:
    """p < 0.05 in a two-sided Mann-Whitney U test, and median(optimized) / median(reference) >= 1.1.

    The test is the normal approximation with tie correction and without continuity correction (gpucheck,
    src/gpucheck/analysis/regression.py, `detect_regression` and `mann_whitney_u`).
    """
    reference, optimized = pool_times(trial)
    test = stats.mannwhitneyu(reference, optimized, alternative="two-sided", method="asymptotic", use_continuity=False)
    ratio = np.median(optimized) / np.median(reference)
    return bool(test.pvalue < MANN_WHITNEY_ALPHA and ratio >= MANN_WHITNEY_MIN_RATIO)


def welch(trial: Trial) -> bool:
    """p < 0.01 in a one-sided Welch t-test of mean(optimized) > mean(reference).

    t = (m1 - m0) / sqrt(s1^2 / n + s0^2 / n), with the degrees of freedom of Welch, The generalization of Student's
    problem when several different population variances are involved, Biometrika 34 (1947). A single pair has no
    p value and raises no alarm.
    """
    reference, optimized = pool_times(trial)
    test = stats.ttest_ind(optimized, reference, equal_var=False, alternative="greater")
    return bool(test.pvalue < WELCH_ALPHA)


def relative_noise(trial: Trial) -> bool:
    """(m1 - m0) / m0 > min(s0 / m0, s1 / m1): the difference of the means exceeds the smaller relative noise.

    m is the mean, s the sample standard deviation (n - 1) of a side, unknown below five samples; unknown noise is
    "????", no alarm. The status SLOW of NVIDIA/nvbench, python/scripts/nvbench_compare_legacy.py,
    `compare_gpu_timings`, with the noise of nvbench/detail/statistics.cuh, `standard_deviation`.
    """
    reference, optimized = pool_times(trial)
    if len(reference) < NOISE_MIN_SAMPLES:
        return False
    noise = min(np.std(side, ddof=1) / np.mean(side) for side in (reference, optimized))
    return bool((np.mean(optimized) - np.mean(reference)) / np.mean(reference) > noise)


RIVALS = (
    Rule("pytest-benchmark median:5%", "pytest-benchmark 5.3.1, --benchmark-compare-fail=median:5%", median_5_percent),
    Rule("gpucheck", "gpucheck, detect_regression: Mann-Whitney p < 0.05, medians >= 1.10x", mann_whitney_10_percent),
    Rule("Welch t-test", "Welch, Biometrika 34 (1947), one-sided at 1 %, unpaired", welch),
    Rule(
        "nvbench noise", "NVIDIA/nvbench, nvbench_compare_legacy.py: above the smaller relative noise", relative_noise
    ),
)


def compare(folder: Path) -> TrustReport:
    """The alarms of our rules and of the rivals for the trials of a folder. Raises TrustError and ValueError."""
    taken = read_all(folder)
    trials, machine = taken.trials, taken.conditions.environment.device_name if taken.conditions else ""
    rivals = {rule.name: [rule.alarms(trial) for trial in trials] for rule in RIVALS}
    return analyse(trials, {**our_alarms(trials), **rivals}, machine)


def main(words: Sequence[str] | None = None) -> None:
    """Writes rules.md and rules.png, the alarms of our rules and of others, beside the trials of a folder."""
    parser = argparse.ArgumentParser(prog="python -m tools.rival_rules", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="a folder of trials, the --output of python -m tools.trust")
    folder: Path = parser.parse_args(words).folder
    try:
        report = compare(folder)
    except (TrustError, ValueError) as error:
        parser.error(f"{folder}: {error}")
    sources = "\n".join(f"- {plain(rule.name)}: {plain(rule.source)}" for rule in RIVALS)
    (folder / "rules.md").write_text(f"{markdown(report)}\nSources:\n{sources}\n", encoding="utf-8")
    (folder / "rules.png").write_bytes(png(report))


if __name__ == "__main__":
    main()

"""The alarm rate of a rule, with intervals that allow for trials that share a process. Pure statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95  # two-sided


@dataclass(frozen=True)
class Rate:
    """`alarms` of `trials`, with the ends of a 95 % interval that allows for what trials of one process share."""

    alarms: int
    trials: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.alarms / self.trials


def rate_of(alarms_by_process: Sequence[Sequence[bool]]) -> Rate:
    """The rate of alarms, from one sequence per process with one value per trial. Raises ValueError for no trials."""
    sizes = [len(alarms) for alarms in alarms_by_process if alarms]
    counts = [sum(alarms) for alarms in alarms_by_process if alarms]
    if not sizes:
        raise ValueError("no trials: a rate needs at least one")
    effect = design_effect(counts, sizes) or 1.0
    return Rate(sum(counts), sum(sizes), *korn_graubard(sum(counts), sum(sizes), len(sizes), effect))


def design_effect(counts: Sequence[int], sizes: Sequence[int]) -> float | None:
    """1 + (m - 1) rho, at least 1, for `counts` alarms in `sizes` trials of each process.

    So many of these trials say as much as one independent trial. None where the alarms do not show it: one process,
    alarms in all trials, or in none.

    rho = (MSB - MSW) / (MSB + (n0 - 1) MSW) is the intra-class correlation of a yes-or-no outcome by analysis of
    variance, MSB and MSW the mean squares between and within k processes, n0 = (N - sum n_i^2 / N) / (k - 1) (Ridout,
    Demetrio & Firth, Estimating intraclass correlation for binary data, Biometrics 55, 1999); m = sum n_i^2 / N is the
    mean size of a process as a trial sees it (Donner & Klar, Design and Analysis of Cluster Randomization Trials in
    Health Research, 2000).
    """
    alarms, trials, processes = sum(counts), sum(sizes), len(sizes)
    if processes == trials > 1:
        return 1.0
    if processes < 2 or alarms in (0, trials):
        return None
    within_sum = sum(count - count**2 / size for count, size in zip(counts, sizes, strict=True))
    between = (alarms - within_sum - alarms**2 / trials) / (processes - 1)
    within = within_sum / (trials - processes)
    size = sum(size**2 for size in sizes) / trials
    effective_size = (trials - size) / (processes - 1)
    correlation = (between - within) / (between + (effective_size - 1) * within)
    return max(1.0, 1 + (size - 1) * correlation)


def korn_graubard(alarms: int, trials: int, processes: int, effect: float) -> tuple[float, float]:
    """Clopper-Pearson for n* = n / effect * (t(n - 1) / t(k - 1))^2 trials, t the 97.5 % point, k the processes.

    Korn & Graubard, Confidence intervals for proportions with small expected number of positive counts estimated from
    survey data, Survey Methodology 24 (1998). One process tells nothing about others: its interval is 0 to 1. Where
    alarms come in bunches it needs processes: simulated, it held 95 % with 50 of them, at worst 88 % with 20 and 71 %
    with 5.
    """
    if processes < 2:
        return 0.0, 1.0
    tail = (1 - CONFIDENCE) / 2
    of_trials, of_processes = (float(stats.t.ppf(1 - tail, count - 1)) for count in (trials, processes))
    size = trials / effect * (of_trials / of_processes) ** 2
    hits = alarms / trials * size
    low = float(stats.beta.ppf(tail, hits, size - hits + 1)) if alarms else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, size - hits)) if alarms < trials else 1.0
    return low, high

"""Simulated duets of the recorded cases, with the noise of the trials of duets that are stored below results/.

A simulated process is the sum of an effect of the process, effects of its builds and residuals of pairs. The residuals
of a case are drawn from those of its trials on GPUs. Its effects are normal. Their standard deviations are drawn anew
for each duet from their posterior distribution: the likelihood of the trials of the case, times a prior over all cases
of maximum likelihood (a mixture on GRID; Laird, Nonparametric maximum likelihood estimation of a mixing distribution,
Journal of the American Statistical Association 73, 1978). Each duet has the size that its record plans, is decided by
`gpugate.statistics.sequential`, and takes further processes as a gate does. `python -m tools.duet_figures` writes the
figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpugate.measurement.record import Measurement, Process
from gpugate.results.duet import DuetSize, plan_size
from gpugate.statistics.intervals import PairsMean, collect_means, mean_of_pairs
from gpugate.statistics.sequential import MOST_PROCESSES, decide, is_alarming
from tools.trust.duets import DuetTrial

Numbers = npt.NDArray[np.float64]
SEED = 20261127
GRID = np.array([0, 0.1, 0.2, 0.4, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 11, 16]) / 100  # standard deviations of effects
EM_STEPS, DRAWN_MEDIANS = 500, 2000
FEWEST_BUILDS = 2  # degrees of freedom; below them, the effects of builds are a part of the effect of their process
PROCESS_S = 10.0  # the least time of a process beside its pairs
NOTHING = 1e-10  # variance of a process of quiet pairs


class TriedProcess(NamedTuple):
    """One process of a trial: the log-ratios of its builds, head over base, its seconds, and those of its pairs."""

    builds: tuple[Numbers, ...]
    wall_s: float
    measuring_s: float

    @property
    def pairs(self) -> int:
        return sum(map(len, self.builds))

    @property
    def log_ratio(self) -> float:
        return float(np.median(np.concatenate(self.builds)))


@dataclass(frozen=True)
class CaseNoise:
    """The noise of one case. `processes` and `builds` are probabilities over GRID; `builds` is None where effects of
    builds are not known apart."""

    residuals: Numbers
    processes: Numbers
    builds: Numbers | None
    process_s: float  # of a process beside its pairs
    pair_s: float


class Simulated(NamedTuple):
    """Simulated duets of one case: how many ended with each decision, and the means of their processes and seconds."""

    decisions: Mapping[str, int]
    processes: float
    seconds: float

    def share(self, decision: str) -> float:
        return self.decisions.get(decision, 0) / sum(self.decisions.values())


def collect_processes(trials: Iterable[DuetTrial]) -> dict[str, list[list[TriedProcess]]]:
    """The processes of each trial, by case."""
    found: dict[str, list[list[TriedProcess]]] = {}
    for trial in trials:
        for case_id in sorted(trial.case_ids):
            taken = [(one.measured[case_id], one.swapped) for one in trial.processes if case_id in one.measured]
            found.setdefault(case_id, []).append([_tried(*one) for one in taken if one[0].pairs])
    return found


def _tried(measurement: Measurement, swapped: bool) -> TriedProcess:
    sign = 1 if swapped else -1
    builds = tuple(sign * np.array(one.log_ratios) for one in measurement.instances if one.pairs)
    return TriedProcess(builds, measurement.wall_s, measurement.spent_s.get("measuring", 0.0))


def fit_noise(tried: Mapping[str, Sequence[Sequence[TriedProcess]]]) -> dict[str, CaseNoise]:
    """Fits the noise of every case to its trials, whose slowdown is not used: a trial is one group about its mean."""
    draw = np.random.default_rng(SEED)
    residuals = {name: _residuals(trials) for name, trials in tried.items()}
    errors = {name: _median_errors(residuals[name], trials, draw) for name, trials in tried.items()}
    of_builds = {
        name: [
            [(float(np.median(build)), errors[name][len(build)]) for build in process.builds]
            for trial in trials
            for process in trial
        ]
        for name, trials in tried.items()
    }
    builds = _posteriors(of_builds)
    known = {name for name, groups in of_builds.items() if sum(len(group) - 1 for group in groups) >= FEWEST_BUILDS}
    of_processes = {
        name: [
            [
                (process.log_ratio, errors[name][process.pairs] + _variance(builds, known, name) / len(process.builds))
                for process in trial
            ]
            for trial in trials
        ]
        for name, trials in tried.items()
    }
    processes = _posteriors(of_processes)
    return {
        name: CaseNoise(
            residuals[name],
            processes[name],
            builds[name] if name in known else None,
            max(PROCESS_S, median(one.wall_s - one.measuring_s for trial in trials for one in trial)),
            median(one.measuring_s / one.pairs for trial in trials for one in trial),
        )
        for name, trials in tried.items()
    }


def _residuals(trials: Sequence[Sequence[TriedProcess]]) -> Numbers:
    """The residuals of all pairs about the median of their build, as wide as those about a known mean."""
    builds = [build for trial in trials for process in trial for build in process.builds if len(build) > 1]
    return np.concatenate([(build - np.median(build)) * math.sqrt(len(build) / (len(build) - 1)) for build in builds])


def _median_errors(
    residuals: Numbers, trials: Sequence[Sequence[TriedProcess]], draw: np.random.Generator
) -> dict[int, float]:
    """The variance of the median of so many pairs, for each number that a build or a process has."""
    processes = [process for trial in trials for process in trial]
    counts = {process.pairs for process in processes} | {len(build) for one in processes for build in one.builds}
    return {count: float(np.var(np.median(draw.choice(residuals, (DRAWN_MEDIANS, count)), axis=1))) for count in counts}


def _variance(builds: Mapping[str, Numbers], known: set[str], name: str) -> float:
    return float(builds[name] @ GRID**2) if name in known else 0.0


def _posteriors(groups: Mapping[str, Sequence[Sequence[tuple[float, float]]]]) -> dict[str, Numbers]:
    """The posterior probabilities over GRID of the standard deviation of each case, by the EM algorithm for the weights
    of the prior. Each group has values about an unknown mean, each with the variance that its pairs give it."""
    logs = np.array(
        [[sum(_log_likelihood(group, sd) for group in of_case) for sd in GRID] for of_case in groups.values()]
    )
    likelihoods = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights = np.full(len(GRID), 1 / len(GRID))
    for _ in range(EM_STEPS):
        posteriors = likelihoods * weights
        posteriors /= posteriors.sum(axis=1, keepdims=True)
        weights = posteriors.mean(axis=0)
    return dict(zip(groups, posteriors, strict=True))


def _log_likelihood(group: Sequence[tuple[float, float]], sd: float) -> float:
    """That of normal values about a mean over which it is integrated."""
    if len(group) < 2:
        return 0.0
    values, variances = np.array(group).T
    variances = variances + sd**2 + NOTHING
    weights = 1 / variances
    mean = weights @ values / weights.sum()
    return float(-((values - mean) ** 2 @ weights + np.log(variances).sum() + math.log(weights.sum())) / 2)


def size_of(record: Sequence[Process]) -> DuetSize:
    """The size that the record of a case plans. Raises ValueError for a record without noise."""
    size = plan_size(record)
    if size is None:
        raise ValueError("a record of single pairs plans no duet: record it again with a larger --perf-budget")
    return size


def count_processes(noise: CaseNoise, size: DuetSize, limit_s: float) -> int:
    """The processes of a duet that end within the limit; 0 where the first one is cut off."""
    return int(min(MOST_PROCESSES, limit_s // _process_s(noise, size)))


def _process_s(noise: CaseNoise, size: DuetSize) -> float:
    return noise.process_s + size.builds * size.pairs * noise.pair_s


def simulate(
    noise: CaseNoise,
    size: DuetSize,
    slowdown: float,
    count: int,
    draw: np.random.Generator,
    most: int = MOST_PROCESSES,
    goes_on: bool = False,
) -> Simulated:
    """Simulates `count` duets of at most so many processes, in which a step takes the share `slowdown` longer.

    `goes_on`: a duet that seems slower by then gets the processes that decide it, as in a gate.
    """
    if not most:
        return Simulated({"undecided": count}, 0.0, _process_s(noise, size))
    decisions: dict[str, int] = {}
    taken = 0
    for _ in range(count):
        found = collect_means(draw_processes(noise, size, math.log1p(slowdown), most, draw, goes_on))
        decision = decide(found)
        decisions[decision] = decisions.get(decision, 0) + 1
        taken += found.count
    return Simulated(decisions, taken / count, taken / count * _process_s(noise, size))


def draw_processes(
    noise: CaseNoise, size: DuetSize, log_ratio: float, count: int, draw: np.random.Generator, goes_on: bool = False
) -> list[PairsMean]:
    """Draws the processes of one duet, until the test decides."""
    of_process = draw.choice(GRID, p=noise.processes)
    of_build = 0.0 if noise.builds is None else draw.choice(GRID, p=noise.builds)
    found: list[PairsMean] = []
    while not found or _takes_another(found, count, goes_on):
        mean = log_ratio + of_process * draw.standard_normal()
        builds = mean + of_build * draw.standard_normal((size.builds, 1))
        pairs = builds + draw.choice(noise.residuals, (size.builds, size.pairs))
        found.append(mean_of_pairs(list(pairs)))
    return found


def _takes_another(found: Sequence[PairsMean], count: int, goes_on: bool) -> bool:
    means = collect_means(found)
    return decide(means) == "undecided" and (means.count < count or (goes_on and is_alarming(means)))

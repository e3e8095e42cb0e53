"""The number of trials of each kind, and the trials that the next process takes. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tools.trust.trials import SLOWDOWNS, Conditions, Trial

SLOWED_SHARE = 5  # a rate near 1 or 0.5 needs fewer trials than a false-alarm rate near 0


@dataclass(frozen=True)
class Plan:
    """The orders of one process. `taken` counts the trials of earlier processes, by case and by `str(slowdown)`."""

    output: str  # path of its TrialsFile
    process: int  # from 1 on
    processes: int  # that the trials of every case are spread over
    budget_s: float
    aa_trials: int  # of every case, over all processes
    slowdowns: tuple[float, ...] = SLOWDOWNS[1:]  # that are seeded
    earlier: Conditions | None = None  # of the trials taken so far, which its own must meet
    taken: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def wanted_trials(aa_trials: int, slowdowns: Iterable[float]) -> dict[float, int]:
    """Trials of one case by slowdown: a fifth as many of each slowdown as of A/A."""
    return {0.0: aa_trials, **dict.fromkeys(slowdowns, math.ceil(aa_trials / SLOWED_SHARE))}


def count_trials(trials: Iterable[Trial]) -> dict[str, dict[str, int]]:
    """Counts the trials by case and by `str(slowdown)`."""
    counts: dict[str, Counter[str]] = {}
    for trial in trials:
        counts.setdefault(trial.case_id, Counter())[str(trial.slowdown)] += 1
    return {case_id: dict(of_case) for case_id, of_case in counts.items()}


def count_missing(plan: Plan, case_id: str) -> int:
    """Counts the trials of a case that no process has taken yet."""
    of_case = wanted_trials(plan.aa_trials, plan.slowdowns)
    return sum(max(0, count - _count_taken(plan, case_id, slowdown)) for slowdown, count in of_case.items())


def share_of(plan: Plan, case_id: str) -> list[float]:
    """The slowdowns of the trials that this process takes of one case, spread so that no kind comes in one piece."""
    own = {
        slowdown: _share(plan, count, _count_taken(plan, case_id, slowdown))
        for slowdown, count in wanted_trials(plan.aa_trials, plan.slowdowns).items()
    }
    placed = [((index + 0.5) / count, slowdown) for slowdown, count in own.items() for index in range(count)]
    return [slowdown for _, slowdown in sorted(placed)]


def _share(plan: Plan, count: int, taken: int) -> int:
    """Computes the trials of one kind for this process, at the pace of `count` trials in `processes` processes.

    The number makes up for earlier processes that were cut off, though never by more than a whole process takes.
    """
    due = math.ceil(count * plan.process / plan.processes) - taken
    return max(0, min(max(due, 1), math.ceil(count / plan.processes), count - taken))


def _count_taken(plan: Plan, case_id: str, slowdown: float) -> int:
    return plan.taken.get(case_id, {}).get(str(slowdown), 0)

"""Our own rule for trials: what the gate would have said of a speedup with its confirmations, by its own functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpugate.intervals import Estimate, coefficient_of_variation
from gpugate.judging import over_processes
from gpugate.measurement.settings import ATTEMPTS
from gpugate.measurement.speedup import speedup_of
from gpugate.recording import SPARE_PROCESSES
from gpugate.summary import MIN_PROCESSES, MIN_SITTINGS, counted
from gpugate.tolerances import speedup_tolerance
from gpugate.trust.analysis import OURS
from gpugate.trust.rival_rules import Rule
from gpugate.trust.trial import Trial
from gpugate.verdict import Outcome

IN_ONE_GO = f"{OURS}, baseline of one night"
ENOUGH_PROCESSES = ATTEMPTS + MIN_PROCESSES  # no trial is then both asked and recorded
# Speedup and throughput: the tolerance of a night allows for both, though only speedups are in trials.
CHECKS_PER_CASE = 2


def our_rules(trials: Sequence[Trial]) -> tuple[Rule, Rule]:
    """The gate's rule with a baseline that was recorded over nights, and with one that was recorded in one go.

    Both sides of a trial are the same on the same machine, so that nothing of what nights differ by is in it. The first
    rule therefore says what measuring itself resolves, the second one what a gate resolves whose tolerance has to allow
    for other nights because its baseline does not know them.

    A gate asks an open result for more pairs before it asks a fresh process, a trial has only those of its budget. The
    rules know `trials` alone: they raise KeyError for any other.
    """
    pool = _Pool(trials)
    return (
        Rule(OURS, "gpugate.judging.over_processes, baseline of several nights", _OurAlarm(pool, MIN_SITTINGS)),
        Rule(IN_ONE_GO, "the same, no tolerance below that for one night", _OurAlarm(pool, sittings=1)),
    )


@dataclass(frozen=True)
class _Recorded:
    """What a baseline would hold: the median speedup over processes, and how much they vary."""

    speedup: float
    cv: float | None
    processes: int


class _Pool:
    """The speedups of all trials of a run, by case and slowdown, then by process.

    Another process's trial of the same case and slowdown stands for a fresh process that is asked; one A/A trial of
    each of MIN_PROCESSES other processes stands for the recorded baseline.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.checks = CHECKS_PER_CASE * len({trial.case_id for trial in trials})
        self._speedups: dict[tuple[str, float], dict[int, list[Estimate]]] = defaultdict(lambda: defaultdict(list))
        self._place: dict[int, int] = {}  # by identity: how many of its kind its process took before
        self._trials = trials  # identities last as long as what they are of
        for trial in trials:
            of_process = self._speedups[trial.case_id, trial.slowdown][trial.process]
            self._place[id(trial)] = len(of_process)
            of_process.append(speedup_of(trial.instances))

    def own(self, trial: Trial) -> Estimate:
        return self._speedups[trial.case_id, trial.slowdown][trial.process][self._place[id(trial)]]

    def others(self, trial: Trial, slowdown: float) -> list[Estimate]:
        """One trial of each other process, beginning with the next one."""
        by_process, place = self._speedups[trial.case_id, slowdown], self._place[id(trial)]
        processes = sorted(by_process, key=lambda process: (process < trial.process, process))
        taken = [by_process[process] for process in processes if process != trial.process]
        return [speedups[place % len(speedups)] for speedups in taken]

    def recorded(self, trial: Trial) -> _Recorded:
        """By the processes before this one, while the fresh ones that are asked come after it. As a recording does, it
        takes spare ones for those that were disturbed.

        Where there is no other process, a baseline would hold what is true: both sides take the same time.
        """
        found = self.others(trial, 0.0)[::-1][: MIN_PROCESSES + SPARE_PROCESSES]
        speedups = [found[index].median for index in counted(found)[:MIN_PROCESSES]] or [1.0]
        return _Recorded(float(np.median(speedups)), coefficient_of_variation(speedups), len(speedups))


@dataclass(frozen=True)
class _OurAlarm:
    pool: _Pool
    sittings: int

    def __call__(self, trial: Trial) -> bool:
        """Whether a gate would have been red: REGRESSED, and INCONCLUSIVE too, after up to ATTEMPTS processes."""
        then = self.pool.recorded(trial)
        allowed = speedup_tolerance(then.cv, then.processes, self.sittings, self.pool.checks)
        fresh = iter(self.pool.others(trial, trial.slowdown)[: ATTEMPTS - 1])
        attempts = [self.pool.own(trial)]
        outcome = over_processes(attempts, then.speedup, allowed)
        while _asks(outcome, len(attempts)) and (another := next(fresh, None)) is not None:
            attempts.append(another)
            outcome = over_processes(attempts, then.speedup, allowed)
        return outcome in (Outcome.REGRESSED, Outcome.INCONCLUSIVE)


def _asks(outcome: Outcome, processes: int) -> bool:
    """As `gpugate.deciding.wants_fresh_process` does for times."""
    return outcome is Outcome.INCONCLUSIVE or (outcome is Outcome.REGRESSED and processes == 1)

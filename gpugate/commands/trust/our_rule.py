"""Our own rule for trials: what the gate would have said of a speedup with its confirmations, by its own functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpugate.commands.trust.analysis import OURS
from gpugate.commands.trust.rival_rules import Rule
from gpugate.commands.trust.trial import Trial
from gpugate.judging.processes import voted
from gpugate.judging.times import votes
from gpugate.results.summary import OneProcess, counted, one_process
from gpugate.results.verdict import Outcome
from gpugate.session.recording import SPARE_PROCESSES
from gpugate.statistics.intervals import coefficient_of_variation
from gpugate.statistics.policy import ATTEMPTS, MIN_PROCESSES, MIN_SITTINGS
from gpugate.statistics.tolerance import speedup_tolerance

OVER_NIGHTS = f"{OURS}, baseline of several nights"
ENOUGH_PROCESSES = ATTEMPTS + MIN_PROCESSES  # no trial is then both asked and recorded
# Speedup and throughput: the tolerance of a night allows for both, though only speedups are in trials.
CHECKS_PER_CASE = 2


def our_rules(trials: Sequence[Trial]) -> tuple[Rule, ...]:
    """The gate's rule with a baseline that was recorded in one go, and, of ENOUGH_PROCESSES, over nights.

    The tolerance of the first has to allow for other nights, which its baseline does not know. Both sides of a trial
    are the same on the same machine, so that nothing of what nights differ by is in it: the second one says what
    measuring itself resolves.

    A gate asks an open result for more pairs before it asks a fresh process, a trial has only those of its budget. The
    rules know `trials` alone: they raise KeyError for any other.
    """
    pool = _Pool(trials)
    in_one_go = Rule(OURS, "gpugate.judging.times.votes, baseline of one night", _OurAlarm(pool, sittings=1))
    fewest, most = min(pool.processes.values()), max(pool.processes.values())
    if fewest < ENOUGH_PROCESSES:
        return (in_one_go,)
    a_night = dict.fromkeys(str(_a_night(processes - ATTEMPTS)) for processes in (fewest, most))
    words = f"the same, {MIN_SITTINGS} nights, processes on each: {' to '.join(a_night)}"
    return in_one_go, Rule(OVER_NIGHTS, words, _OurAlarm(pool, MIN_SITTINGS))


@dataclass(frozen=True)
class _Recorded:
    """The figures of a baseline: the median speedup over processes, and its variation."""

    speedup: float
    cv: float | None
    processes: int


class _Pool:
    """The speedups of all trials of a run, by case and slowdown, then by process.

    Another process's trial of the same case and slowdown stands for a fresh process that is asked; one A/A trial of
    each of MIN_PROCESSES other processes stands for the recorded baseline, or for one of its nights.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.processes = Counter(case_id for case_id, _ in {(one.case_id, one.process) for one in trials})  # by case
        self.checks = CHECKS_PER_CASE * len({trial.case_id for trial in trials})
        self._told: dict[tuple[str, float], dict[int, list[OneProcess]]] = defaultdict(lambda: defaultdict(list))
        self._place: dict[int, int] = {}  # by identity: how many of its kind its process took before
        self._trials = trials  # identities last as long as what they are of
        for trial in trials:
            of_process = self._told[trial.case_id, trial.slowdown][trial.process]
            self._place[id(trial)] = len(of_process)
            of_process.append(one_process(trial.instances))

    def own(self, trial: Trial) -> OneProcess:
        return self._told[trial.case_id, trial.slowdown][trial.process][self._place[id(trial)]]

    def asked(self, trial: Trial) -> list[OneProcess]:
        """The fresh processes of a gate: the next ones that took a trial of this slowdown."""
        return self._of(trial, trial.slowdown, self._asked(trial))

    def _asked(self, trial: Trial) -> list[int]:
        return self._others(trial, trial.slowdown)[: ATTEMPTS - 1]

    def _others(self, trial: Trial, slowdown: float) -> list[int]:
        """The other processes, beginning with the next one."""
        by_process = self._told[trial.case_id, slowdown]
        processes = sorted(by_process, key=lambda process: (process < trial.process, process))
        return [process for process in processes if process != trial.process]

    def _of(self, trial: Trial, slowdown: float, processes: Sequence[int]) -> list[OneProcess]:
        """One trial of each."""
        taken = [self._told[trial.case_id, slowdown][process] for process in processes]
        return [told[self._place[id(trial)] % len(told)] for told in taken]

    def recorded(self, trial: Trial, sittings: int) -> _Recorded:
        """By the processes before this one, while the fresh ones that are asked come after it.

        Where there is no other process, a baseline would hold what is true: both sides take the same time.
        """
        asked = self._asked(trial)
        last_first = self._others(trial, 0.0)[::-1]
        last_asked = sorted(last_first, key=asked.__contains__)
        free = last_asked[: max(MIN_PROCESSES, len(last_asked) - len(asked))]
        not_asked = self._of(trial, 0.0, free)
        if sittings > 1 and len(not_asked) >= MIN_PROCESSES:
            return _of_nights([not_asked[index].speedup.median for index in counted(not_asked)], sittings)
        found = not_asked[: MIN_PROCESSES + SPARE_PROCESSES]  # as a recording takes, for those that were disturbed
        speedups = [found[index].speedup.median for index in counted(found)[:MIN_PROCESSES]] or [1.0]
        return _Recorded(float(np.median(speedups)), coefficient_of_variation(speedups), len(speedups))


def _of_nights(speedups: Sequence[float], sittings: int) -> _Recorded:
    """Each night has processes of its own: of the same ones, nights would differ too little."""
    size = _a_night(len(speedups), sittings)
    nights = [float(np.median(speedups[size * night : size * (night + 1)])) for night in range(sittings)]
    return _Recorded(float(np.median(nights)), coefficient_of_variation(nights), size * sittings)


def _a_night(processes: int, sittings: int = MIN_SITTINGS) -> int:
    return min(MIN_PROCESSES, processes // sittings)


@dataclass(frozen=True)
class _OurAlarm:
    pool: _Pool
    sittings: int

    def __call__(self, trial: Trial) -> bool:
        """Returns True where a gate would be red: REGRESSED or INCONCLUSIVE after up to ATTEMPTS processes."""
        then = self.pool.recorded(trial, self.sittings)
        allowed = speedup_tolerance(then.cv, then.processes, self.sittings, self.pool.checks)
        fresh = iter(self.pool.asked(trial))
        attempts = [self.pool.own(trial).speedup]
        outcome = voted(votes(attempts, then.speedup, allowed))
        while _asks(outcome, len(attempts)) and (another := next(fresh, None)) is not None:
            attempts.append(another.speedup)
            outcome = voted(votes(attempts, then.speedup, allowed))
        return outcome in (Outcome.REGRESSED, Outcome.INCONCLUSIVE)


def _asks(outcome: Outcome, processes: int) -> bool:
    """As `gpugate.judging.decide.wants_fresh_process` does for times."""
    return outcome is Outcome.INCONCLUSIVE or (outcome is Outcome.REGRESSED and processes == 1)

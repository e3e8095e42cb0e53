"""The alarms of a gate with its confirmations over trials, computed by the gate's own functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpugate.judging.processes import vote
from gpugate.judging.times import votes
from gpugate.measurement.record import TimedBuild
from gpugate.measurement.speedup import speedup_of
from gpugate.results.summary import ProcessSummary, Usual, select_counted, summarize_process, usual
from gpugate.results.verdict import Outcome
from gpugate.statistics.intervals import Estimate, coefficient_of_variation, machine_half_width
from gpugate.statistics.policy import DECIDING_PROCESSES, MIN_NIGHTS, MIN_PROCESSES, SPARE_PROCESSES
from gpugate.statistics.tolerance import speedup_tolerance
from gpugate.statistics.variation import Variation
from tools.trust.trials import Trial

ONE_NIGHT, SEVERAL_NIGHTS = "gpugate", "gpugate, baseline of several nights"
ENOUGH_PROCESSES = DECIDING_PROCESSES + MIN_PROCESSES  # no trial is then both a confirmation and recorded
# Speedup and throughput: the tolerance of a night allows for both, though only speedups are in trials.
CHECKS_PER_CASE = 2


def our_alarms(trials: Sequence[Trial]) -> dict[str, list[bool]]:
    """The alarms of the gate, one a trial, by the name of the rule: with a baseline of one night and, from
    ENOUGH_PROCESSES on, with one of several nights.

    The tolerance of the former has to allow for other nights, which its baseline does not contain. Both sides of a
    trial are the same on the same machine, so that trials contain no difference between nights: the latter shows the
    resolution of the measurement itself.

    A gate takes more pairs before it starts a further process; a trial has only the pairs of its budget.
    """
    processes = Counter(case_id for case_id, _ in {(one.case_id, one.process) for one in trials})
    rules = {ONE_NIGHT: 1}
    if min(processes.values()) >= ENOUGH_PROCESSES:
        rules[SEVERAL_NIGHTS] = MIN_NIGHTS
    checks = CHECKS_PER_CASE * len(processes)
    neighbours = list(_neighbours(trials))
    return {name: [_alarms(one, nights, checks) for one in neighbours] for name, nights in rules.items()}


class _Process(NamedTuple):
    """A trial as a process."""

    builds: Sequence[TimedBuild]
    summary: ProcessSummary


@dataclass(frozen=True)
class _Neighbours:
    """A trial as a process, and one trial of each other process, beginning with the next one.

    `confirming` have the trial's slowdown, `unchanged` none, and both are by the number of their process.
    """

    own: _Process
    confirming: Mapping[int, _Process]
    unchanged: dict[int, ProcessSummary]


def _neighbours(trials: Iterable[Trial]) -> Iterator[_Neighbours]:
    taken: dict[tuple[str, float], dict[int, list[_Process]]] = defaultdict(lambda: defaultdict(list))
    places = []  # among the trials of the same kind of its process
    for trial in trials:
        of_process = taken[trial.case_id, trial.slowdown][trial.process]
        places.append(len(of_process))
        of_process.append(_Process(trial.instances, summarize_process(trial.instances)))

    def others(trial: Trial, slowdown: float, place: int) -> dict[int, _Process]:
        by_process = taken.get((trial.case_id, slowdown), {})
        order = sorted(by_process, key=lambda process: (process < trial.process, process))
        return {one: by_process[one][place % len(by_process[one])] for one in order if one != trial.process}

    for trial, place in zip(trials, places, strict=True):
        own = taken[trial.case_id, trial.slowdown][trial.process][place]
        unchanged = {number: one.summary for number, one in others(trial, 0.0, place).items()}
        yield _Neighbours(own, others(trial, trial.slowdown, place), unchanged)


def _alarms(trial: _Neighbours, nights: int, checks: int) -> bool:
    """True where a gate would be red: REGRESSED or INCONCLUSIVE after up to DECIDING_PROCESSES processes.

    A disturbed process does not count beside an undisturbed one, as `gpugate.judging.decide` has it. Where every
    process was disturbed all count; a gate then also compares the optimized side's own time.
    """
    confirming = list(trial.confirming)[: DECIDING_PROCESSES - 1]
    recorded = _record(_select_recorded(trial.unchanged, confirming, nights), nights)
    allowed = speedup_tolerance(recorded.cv, recorded.processes, nights, checks)
    taken: list[_Process] = []
    outcome, disturbed = Outcome.INCONCLUSIVE, 0
    for process in [trial.own, *trial.confirming.values()]:
        if len(taken) == DECIDING_PROCESSES + min(SPARE_PROCESSES, disturbed):
            break
        taken.append(process)
        undisturbed = [one for one in taken if not recorded.disturbs(one.summary)]
        disturbed = len(taken) - len(undisturbed)
        speedups = [speedup_of(one.builds, recorded.half_width) for one in undisturbed or taken]
        if len(speedups) == 1 and len(taken) >= DECIDING_PROCESSES:
            speedups = [Estimate(*[speedups[0].median] * 3)]
        outcome = vote(votes(speedups, recorded.speedup, allowed))
        if undisturbed and not _wants_confirmation(outcome, len(undisturbed)):
            break
    return outcome in (Outcome.REGRESSED, Outcome.INCONCLUSIVE)


def _wants_confirmation(outcome: Outcome, processes: int) -> bool:
    """Decides as `gpugate.judging.decide.wants_fresh_process` does for times."""
    return outcome is Outcome.INCONCLUSIVE or (outcome is Outcome.REGRESSED and processes == 1)


@dataclass(frozen=True)
class _Record:
    """The median speedup over recorded processes, and its variation."""

    speedup: float
    cv: float | None
    processes: int
    values: int  # processes, or nights, of which the variation is
    usual: Usual | None = None  # of at least MIN_PROCESSES

    @property
    def half_width(self) -> float | None:
        """The half-width of the interval that one process gives for its machine, as `History.half_widths`."""
        if self.cv is None or self.processes < MIN_PROCESSES:
            return None
        return machine_half_width(Variation(self.cv, self.values - 1))

    def disturbs(self, process: ProcessSummary) -> bool:
        return self.usual is not None and self.usual.disturbance(process) > 1


def _select_recorded(
    unchanged: dict[int, ProcessSummary], confirming: Sequence[int], nights: int
) -> list[ProcessSummary]:
    """The processes that stand for the record: the last ones before the trial's, and no confirming one where others are
    enough."""
    others = [process for process in unchanged if process not in confirming]
    last_first = [*reversed(others), *(process for process in reversed(unchanged) if process in confirming)]
    free = last_first[: max(MIN_PROCESSES, len(last_first) - len(confirming))]
    # A recording of one night takes spare processes for disturbed ones.
    most = len(free) if nights > 1 and len(free) >= MIN_PROCESSES else MIN_PROCESSES + SPARE_PROCESSES
    return [unchanged[process] for process in free[:most]]


def _record(processes: Sequence[ProcessSummary], nights: int) -> _Record:
    """Each night has processes of its own: nights of the same processes would differ too little.

    Without processes the record is the truth: both sides take the same time.
    """
    counted = [processes[index] for index in select_counted(processes)]
    speedups = [one.speedup.median for one in counted]
    if nights == 1 or len(processes) < MIN_PROCESSES:
        speedups, counted = speedups[:MIN_PROCESSES] or [1.0], counted[:MIN_PROCESSES]
        of_all = usual(counted, ()) if len(counted) >= MIN_PROCESSES else None
        found = len(speedups)
        return _Record(float(np.median(speedups)), coefficient_of_variation(speedups), found, found, of_all)
    size = min(MIN_PROCESSES, len(speedups) // nights)
    groups = [range(size * night, size * (night + 1)) for night in range(nights)]
    medians = [float(np.median([speedups[index] for index in group])) for group in groups]
    of_all = usual(counted[: size * nights], ())
    return _Record(float(np.median(medians)), coefficient_of_variation(medians), size * nights, nights, of_all)

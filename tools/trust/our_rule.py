"""The alarms of a gate with its confirmations over trials: the gate itself decides each trial, by its wall time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpugate.judging.actions import Action, Allowed, next_action
from gpugate.judging.evidence import gather
from gpugate.judging.rules import decide_by
from gpugate.measurement.record import Difference, Measurement, Process, SideCost
from gpugate.results.case import CaseResult, Confirmation, Promise, Remembered
from gpugate.results.run import Mode
from gpugate.results.summary import history
from gpugate.results.verdict import Verdict
from gpugate.session.recording import SPARE_PROCESSES
from gpugate.statistics.policy import DECIDING_PROCESSES, MIN_PROCESSES
from gpugate.workload import Size, Tolerance
from tools.trust.trials import Trial

ONE_NIGHT, SEVERAL_NIGHTS = "gpugate", "gpugate, baseline of several nights"
NIGHTS = 5  # of a record of several nights
ENOUGH_PROCESSES = DECIDING_PROCESSES + MIN_PROCESSES  # no trial is then both a confirmation and recorded
CHECKS_PER_CASE = 2  # by which the tolerance of a night is chosen
SAME_OUTPUTS = Difference(0.0, 0.0, None, "fresh inputs")
_COST = SideCost(0.0, 0.0)


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
        rules[SEVERAL_NIGHTS] = NIGHTS
    checks = CHECKS_PER_CASE * len(processes)
    neighbours = list(_neighbours(trials))
    return {name: [_alarms(one, nights, checks) for one in neighbours] for name, nights in rules.items()}


@dataclass(frozen=True)
class _Neighbours:
    """The builds of a trial, and those of one trial of each other process, beginning with the next one.

    `confirming` have the trial's slowdown, `unchanged` none, and both are by the number of their process.
    """

    own: Process
    confirming: Mapping[int, Process]
    unchanged: dict[int, Process]


def _neighbours(trials: Iterable[Trial]) -> Iterator[_Neighbours]:
    taken: dict[tuple[str, float], dict[int, list[Process]]] = defaultdict(lambda: defaultdict(list))
    places = []  # among the trials of the same kind of its process
    for trial in trials:
        of_process = taken[trial.case_id, trial.slowdown][trial.process]
        places.append(len(of_process))
        of_process.append(trial.instances)

    def others(trial: Trial, slowdown: float, place: int) -> dict[int, Process]:
        by_process = taken.get((trial.case_id, slowdown), {})
        order = sorted(by_process, key=lambda process: (process < trial.process, process))
        return {one: by_process[one][place % len(by_process[one])] for one in order if one != trial.process}

    for trial, place in zip(trials, places, strict=True):
        confirming, unchanged = others(trial, trial.slowdown, place), others(trial, 0.0, place)
        yield _Neighbours(trial.instances, confirming, unchanged)


def _alarms(trial: _Neighbours, nights: int, checks: int) -> bool:
    """True where the wall time makes a gate red. Without MIN_PROCESSES recorded ones, no gate has a record: none is."""
    confirming = list(trial.confirming)[: DECIDING_PROCESSES - 1]
    recorded = select_recorded(trial.unchanged, confirming, nights)
    if len(recorded) < MIN_PROCESSES:
        return False
    of_a_night = len(recorded) // nights
    started = [f"2030-01-{1 + min(index // of_a_night, nights - 1):02}T00:00:00" for index in range(len(recorded))]
    then = history(recorded, started)
    result = CaseResult("toy/fast/cpu", "toy", "fast", "baseline", Size(1, 0, 0), measure(trial.own))
    result.promise, result.remembered = (
        Promise(None, Tolerance(1, 1), None),
        Remembered(then, then, "exact", checks=checks),
    )
    verdicts = run_gate(result, map(measure, trial.confirming.values()))
    return not next(one for one in verdicts if one.check == "throughput").good


def measure(builds: Process) -> Measurement:
    """A process with these builds and right outputs, of which nothing was counted."""
    return Measurement(
        "toy/fast/cpu", builds, "budget", (SAME_OUTPUTS,), _COST, _COST, counters_missing="none was counted"
    )


def run_gate(result: CaseResult, waiting: Iterable[Measurement]) -> list[Verdict]:
    """The verdicts of a gate that measures the case on in the `waiting` processes, as `next_action` decides."""
    fresh, allowed = iter(waiting), Allowed(pairs=False)
    while True:
        evidence = gather(result, Mode.GATE, None)
        further = next(fresh, None) if next_action(evidence, allowed) is Action.PROCESS else None
        if further is None:
            return decide_by(evidence)
        result.attempts.append(Confirmation(further))


def select_recorded(unchanged: dict[int, Process], confirming: Sequence[int], nights: int) -> list[Process]:
    """The processes that stand for the record: the last ones before the trial's, and no confirming one where others are
    enough."""
    others = [process for process in unchanged if process not in confirming]
    last_first = [*reversed(others), *(process for process in reversed(unchanged) if process in confirming)]
    free = last_first[: max(MIN_PROCESSES, len(last_first) - len(confirming))]
    # A recording of one night takes spare processes for disturbed ones.
    most = len(free) if nights > 1 and len(free) >= MIN_PROCESSES else MIN_PROCESSES + SPARE_PROCESSES
    return [unchanged[process] for process in free[:most]]

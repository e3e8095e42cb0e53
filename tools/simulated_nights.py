"""Simulated nights of the recorded suite: its false alarms, and the slowdowns that it catches, by the gate's own rules.

A process is drawn from the joint normal distribution of its case's log speedup and log time; its intervals are those of
a recorded process. Disturbed processes are recorded ones, at the recorded rate of the case. `judge_speedup` and
`judge_throughput` judge each process with the record, the anchor and the promise, and up to three processes decide.
`python -m tools.sharpness` writes the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpugate.catalogue import Catalogue
from gpugate.judging.times import MOVED, judge_speedup, judge_throughput, judged_summaries
from gpugate.measurement.record import Measurement, Process, SideCost
from gpugate.results.case import Remembered
from gpugate.results.summary import ProcessSummary, Summary, shrink, shrink_records, summarize, summarize_process
from gpugate.results.verdict import Outcome
from gpugate.statistics.intervals import Estimate, coefficient_of_variation, widen
from gpugate.statistics.policy import DECIDING_PROCESSES, MIN_PROCESSES, SPARE_PROCESSES
from gpugate.statistics.tolerance import median_variance
from gpugate.statistics.variation import Variation
from gpugate.store import baseline
from gpugate.store.baseline import Entry, Record
from tools.machines import H200, Machine

SEED = 20261124
SLOWDOWN = 0.05
CAUGHT = 0.95
MOST_PROCESSES = DECIDING_PROCESSES + SPARE_PROCESSES
NIGHTS_OF_A_RECORD = 10
GOOD = (Outcome.PASS, Outcome.IMPROVED)
Nights = npt.NDArray[np.bool_]
Draw = np.random.Generator
_COST = SideCost(0.1, 0.1)


class Loans(NamedTuple):
    """Standard deviations of the log time of an optimized side between loans of a machine."""

    usual: float
    by_case: Mapping[str, float] = {}

    def sd(self, case_id: str) -> float:
        return self.by_case.get(case_id, self.usual)


NO_LOANS = Loans(0.0)
# From the history of the records: 0.22 to 0.41 % by case. The largest stands for the cases that were recorded on one
# loan only. `inductor-fp16` has 0.51 % over the four loans since the engine removes the order effect of building; with
# the loan before, of which its speedup is 4 % higher, 2.15.
LOANS_IN_GIT = Loans(0.0041, {"resnet50-inference/inductor-fp16/cuda": 0.0051})
LOANS_OF_THE_OLD_ENGINE = Loans(0.0041, {"resnet50-inference/inductor-fp16/cuda": 0.0215})
HARD_LOANS = Loans(0.014)


@dataclass(frozen=True)
class DrawnProcess:
    """One process of a night: its numbers as a record judges them, and whether it was disturbed."""

    summary: Summary
    disturbed: bool


@dataclass(frozen=True)
class Case:
    """A recorded case. `processes` are its recorded ones, with intervals of their pairs alone; `counted` and `left_out`
    are the indices of the undisturbed and the disturbed ones. `spread` is the covariance of log speedup and log time
    over the undisturbed ones."""

    case_id: str
    promise: float | None
    remembered: Remembered
    processes: tuple[Summary, ...]
    raw: tuple[ProcessSummary, ...]
    counted: tuple[int, ...]
    left_out: tuple[int, ...]
    spread: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """The distribution of the processes of one case: means and covariance of log speedup and log time."""

    mean: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]


@cache
def load_promises(machine: Machine = H200) -> Mapping[str, float | None]:
    known = Catalogue()
    known.register_module("workloads")
    known.load()
    recorded = {case_id: entry.current.recorded_at for case_id, entry in load_entries(machine).items()}
    cases = (case for case in known.cases() if case.id in recorded)
    return {case.id: machine.promise(case, recorded[case.id]).min_speedup for case in cases}


@cache
def load_entries(machine: Machine = H200) -> Mapping[str, Entry]:
    files = baseline.load_all(machine.baselines)
    return {f"{file.workload}/{key}": entry for file in files.values() for key, entry in file.cases.items()}


def load_cases(without: int | None = None, machine: Machine = H200) -> list[Case]:
    """The recorded cases of a machine, from all recorded processes or `without` the one of this index.

    A case that has no such process, or that has too few without it, is left out.
    """
    kept = {case_id: _leave_out(entry, without) for case_id, entry in load_entries(machine).items()}
    found = {case_id: entry for case_id, entry in kept.items() if entry is not None}
    current = [entry.current.history for entry in found.values()]
    histories = shrink_records(current, [entry.anchor.history for entry in found.values()])
    checks = 2 * len(load_entries(machine))  # a speedup and a time of each case
    return [
        _case(case_id, entry.current, Remembered(*of_case, "exact", checks=checks), load_promises(machine)[case_id])
        for (case_id, entry), of_case in zip(found.items(), histories, strict=True)
    ]


def _leave_out(entry: Entry, index: int | None) -> Entry | None:
    if index is None:
        return entry
    record = entry.current
    if index >= len(record.processes) or len(record.processes) <= MIN_PROCESSES:
        return None
    rest = _drop(record, index)
    return Entry(rest if entry.anchor == record else entry.anchor, rest)


def _drop(record: Record, index: int) -> Record:
    processes, started_at = list(record.processes), list(record.started_at)
    del processes[index], started_at[index : index + 1]
    return replace(record, processes=tuple(processes), started_at=tuple(started_at))


def _case(case_id: str, record: Record, remembered: Remembered, promise: float | None) -> Case:
    then = remembered.current
    raw = tuple(summarize_process(process) for process in record.processes)
    of_process = replace(then, shrunk=Variation(0.0, 1.0), optimized_ms_cv=0.0)
    found = tuple(summarize(_measurement(case_id, process), of_process) for process in record.processes)
    left_out = tuple(i for i, one in enumerate(raw) if then.usual is not None and then.usual.disturbance(one) > 1)
    counted = tuple(index for index in range(len(raw)) if index not in left_out)
    logs = [(math.log(found[index].speedup.median), math.log(found[index].optimized_ms.median)) for index in counted]
    return Case(case_id, promise, remembered, found, raw, counted, left_out, np.cov(np.array(logs).T))


def _measurement(case_id: str, builds: Process) -> Measurement:
    return Measurement(case_id, builds, "narrow", (), _COST, _COST)


def copy_record(case: Case) -> Truth:
    then = case.remembered.current
    return Truth(np.log([then.speedup, then.optimized_ms]), case.spread)


def draw_truth(case: Case, draw: Draw) -> Truth:
    """A distribution that the record leaves possible: each variance is s^2 f / chi^2(f), and the mean differs from the
    recorded median by the error of that median."""
    recorded, known = copy_record(case), case.remembered.current.variation
    if known is None:
        raise ValueError(f"{case.case_id} has a record of one process: its variation is not known")
    own = len(case.counted) - 1
    of_speedup = known.share**2 * known.degrees_of_freedom / draw.chisquare(known.degrees_of_freedom)
    of_time = float(case.spread[1, 1]) * own / draw.chisquare(own)
    scale = np.sqrt(np.array([of_speedup, of_time]) / np.maximum(np.diag(case.spread), 1e-12))
    spread = case.spread * np.outer(scale, scale)
    error = draw.multivariate_normal([0.0, 0.0], spread * median_variance(len(case.counted)), method="eigh")
    return Truth(recorded.mean + error, spread)


def draw_process(case: Case, truth: Truth, shift: float, draw: Draw) -> DrawnProcess:
    """One process; `shift` is the log by which the optimized side takes longer than the truth."""
    if draw.random() < len(case.left_out) / len(case.raw):
        index = case.left_out[draw.integers(len(case.left_out))]
        return replace(replay_process(case, case.processes[index], case.raw[index], math.expm1(shift)), disturbed=True)
    template = case.processes[case.counted[draw.integers(len(case.counted))]]
    log_speedup, log_ms = draw.multivariate_normal(np.add(truth.mean, [-shift, shift]), truth.spread, method="eigh")
    summary = replace(
        template,
        speedup=_scale(template.speedup, math.exp(log_speedup) / template.speedup.median),
        optimized_ms=_scale(template.optimized_ms, math.exp(log_ms) / template.optimized_ms.median),
        reference_ms=_scale(template.reference_ms, math.exp(log_speedup + log_ms) / template.reference_ms.median),
    )
    return DrawnProcess(_widen_for_machine(case, summary), disturbed=False)


def replay_process(case: Case, process: Summary, raw: ProcessSummary, slowdown: float = 0.0) -> DrawnProcess:
    """A recorded process as a process of the night, its optimized side slowed."""
    usual = case.remembered.current.usual
    summary = replace(
        process,
        speedup=_scale(process.speedup, 1 / (1 + slowdown)),
        optimized_ms=_scale(process.optimized_ms, 1 + slowdown),
    )
    return DrawnProcess(_widen_for_machine(case, summary), usual is not None and usual.disturbance(raw) > 1)


def _widen_for_machine(case: Case, process: Summary) -> Summary:
    """The process with the intervals that it gives for its machine, as `summarize` makes them."""
    of_speedup, of_time = case.remembered.current.half_widths
    return replace(
        process,
        speedup=widen(process.speedup, of_speedup or 0.0),
        optimized_ms=widen(process.optimized_ms, of_time or 0.0),
    )


def _scale(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(*(factor * end for end in (estimate.median, estimate.low, estimate.high)))


def is_red(case: Case, processes: Iterable[DrawnProcess]) -> bool:
    """True where a gate is red by a time, by the rules of `gpugate.judging.decide` about fresh processes."""
    measurement, then = _measurement(case.case_id, ()), case.remembered.current
    taken: list[DrawnProcess] = []
    outcomes: list[Outcome] = []
    for process in processes:
        if len(taken) == DECIDING_PROCESSES + min(SPARE_PROCESSES, sum(one.disturbed for one in taken)):
            break
        taken.append(process)
        undisturbed = [one.summary for one in taken if not one.disturbed]
        counted = judged_summaries(undisturbed, [one.summary for one in taken if one.disturbed])
        speedup = judge_speedup(measurement, counted, case.promise, case.remembered)
        outcomes = [speedup.outcome, judge_throughput(measurement, counted, case.remembered).outcome]
        if not undisturbed:
            middle = sorted(counted, key=lambda one: one.speedup.median)[(len(counted) - 1) // 2]
            slower = middle.optimized_ms.median > then.optimized_ms * (1 + then.tolerance(case.remembered.checks))
            outcomes += [Outcome.INCONCLUSIVE] if slower else []
            if len(taken) > 1 and all(outcome in GOOD for outcome in outcomes):
                break
            continue
        alone = len(undisturbed) == 1 and (Outcome.REGRESSED in outcomes or MOVED in speedup.numbers)
        if not alone and Outcome.INCONCLUSIVE not in outcomes:
            break
    return any(outcome not in GOOD for outcome in outcomes)


def simulate_nights(
    suite: Sequence[tuple[Case, Truth | None]], loans: Loans, nights: int, draw: Draw, slowdown: float = 0.0
) -> Nights:
    """Simulates nights; returns of shape (nights, cases) whether the gate is red. Without a truth each night draws one
    that the record leaves possible.

    On each night the optimized side takes longer or less long than recorded, by a normal log of the loan's standard
    deviation that all processes of a case share.
    """
    found = np.zeros((nights, len(suite)), dtype=bool)
    for night in range(nights):
        for number, (case, truth) in enumerate(suite):
            shift = math.log1p(slowdown) + draw.normal(0.0, loans.sd(case.case_id))
            of_night = draw_truth(case, draw) if truth is None else truth
            found[night, number] = is_red(
                case, (draw_process(case, of_night, shift, draw) for _ in range(MOST_PROCESSES))
            )
    return found


def record_anew(suite: Sequence[Case], processes: int | None, draw: Draw) -> list[tuple[Case, Truth | None]]:
    """The suite with records drawn from distributions that the true ones leave possible, and these distributions.

    The records have so many processes, or as many as the true ones; the new records are the anchors, too.
    """
    truths = [draw_truth(case, draw) for case in suite]
    histories = []
    for case, truth in zip(suite, truths, strict=True):
        count = processes or case.remembered.current.processes
        speedups, times = np.exp(draw.multivariate_normal(truth.mean, truth.spread, count, method="eigh")).T.tolist()
        new = replace(
            case.remembered.current,
            speedup=median(speedups),
            speedup_cv=coefficient_of_variation(speedups),
            optimized_ms=median(times),
            optimized_ms_cv=coefficient_of_variation(times),
            processes=count,
            shrunk=None,
        )
        histories.append(new)
    return [
        (replace(case, remembered=replace(case.remembered, current=then, anchor=then)), truth)
        for case, truth, then in zip(suite, truths, shrink(histories, histories), strict=True)
    ]


def simulate_recordings(
    suite: Sequence[Case], processes: int | None, loans: Loans, records: int, slowdown: float
) -> Nights:
    """Simulates NIGHTS_OF_A_RECORD nights of each of so many suites that are recorded anew."""
    draw = np.random.default_rng(SEED)
    anew = (record_anew(suite, processes, draw) for _ in range(records))
    return np.concatenate([simulate_nights(one, loans, NIGHTS_OF_A_RECORD, draw, slowdown) for one in anew])


class LeftOut(NamedTuple):
    """The recorded processes, each in turn the first of a night, judged by a record of the others."""

    processes: int
    false_alarms: int
    caught: int  # of the processes with an optimized side that is SLOWDOWN slower
    undisturbed: int
    excluding: int  # of the undisturbed ones, those whose interval excludes the median of the others
    excluding_alone: int  # the same of the intervals that contain pairs and builds alone


def leave_one_out(machine: Machine = H200) -> LeftOut:
    """A process that confirms is one of the record."""
    found = np.zeros(len(LeftOut._fields), dtype=int)
    for index in range(max(len(entry.current.processes) for entry in load_entries(machine).values())):
        for case in load_cases(index, machine):
            builds, then = load_entries(machine)[case.case_id].current.processes[index], case.remembered.current
            first, raw = summarize(_measurement(case.case_id, builds), then), summarize_process(builds)
            order = [(index + step) % len(case.raw) for step in range(MOST_PROCESSES - 1)]
            night = [(first, raw), *((case.processes[one], case.raw[one]) for one in order)]
            red = [
                is_red(case, [replay_process(case, *process, slowdown) for process in night])
                for slowdown in (0.0, SLOWDOWN)
            ]
            undisturbed = then.usual is None or then.usual.disturbance(raw) <= 1
            outside = [not one.low <= then.speedup <= one.high for one in (first.speedup, raw.speedup)]
            found += [1, *red, undisturbed, *(undisturbed and one for one in outside)]
    return LeftOut(*found.tolist())

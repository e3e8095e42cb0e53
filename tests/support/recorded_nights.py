"""Nights of an H200, made of the processes that `baselines/nvidia-h200` has recorded: all 87 cases with real samples.

A night takes one recorded process of each case, and the two after it as confirmations, and judges them against the
record. Costs were not recorded: the seconds
of a case are those of its timed blocks. A night may slow sides down on purpose, skip cases and fail them.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from gpugate.catalogue import catalogue
from gpugate.explaining.autopsy import explain
from gpugate.judging.rules import decide
from gpugate.measurement.record import Counters, Measurement, SideCost, TimedBuild, Yardstick
from gpugate.results.case import CaseResult, Confirmation, Remembered
from gpugate.results.run import Mode, Provenance, RunResult
from gpugate.results.series import rung_number
from gpugate.results.summary import History
from gpugate.results.verdict import CASE_CHECKS
from gpugate.store import baseline, profiles_file
from gpugate.store.baseline import Entry, Record
from gpugate.workload import Case
from tools.machines import H200

FOLDER = H200.baselines
FIRST = datetime.datetime(2026, 11, 22, 3, 0, tzinfo=datetime.timezone.utc)


@dataclass(frozen=True)
class Faults:
    """The changes of a night on purpose: sides that take longer, by a share, and cases without a measurement."""

    slower: Mapping[str, float] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    absent: Collection[str] = ()
    packages: Mapping[str, str] = field(default_factory=dict)


def recorded_night(number: int, faults: Faults = Faults(), commit: str = "7b0b510e4c1f") -> RunResult:
    """The night that is `number` days after the first, of the recorded processes of this number, judged."""
    entries, histories = records()
    found = {
        case_id: _judged(cases()[case_id], entry, histories[case_id], number, faults)
        for case_id, entry in entries.items()
        if case_id in cases() and case_id not in faults.absent
    }
    newest = next(iter(entries.values())).current
    environment = replace(newest.environment, packages={**newest.environment.packages, **faults.packages})
    started = FIRST + datetime.timedelta(days=number)
    run = RunResult(environment, started.isoformat(), seed=number, gate=True, cases=found)
    run.yardsticks = [Yardstick(entry.current.yardsticks) for entry in list(entries.values())[::12]]
    run.source_hashes = {case.workload: entries[case.case_id].current.source_hash for case in found.values()}
    run.wall_s = sum(case.measurement.wall_s for case in found.values() if case.measurement)
    run.provenance = Provenance("https://example.org/team/gpugate", commit, None, "main")
    run.exit_status = int(any(not verdict.good for case in found.values() for verdict in case.verdicts))
    run.command = "pytest perf_tests -m gpu"
    return run


@cache
def records() -> tuple[dict[str, Entry], dict[str, tuple[History, History]]]:
    """Every recorded case, and its histories."""
    files = baseline.load_all(FOLDER)
    entries = {f"{file.workload}/{key}": entry for file in files.values() for key, entry in file.cases.items()}
    return entries, baseline.histories_of(files)


@cache
def cases() -> dict[str, Case]:
    if not catalogue.cases():
        catalogue.register_module("workloads")
        catalogue.load()
    return {case.id: case for case in catalogue.cases()}


def _judged(case: Case, entry: Entry, histories: tuple[History, History], number: int, faults: Faults) -> CaseResult:
    optimization, record = case.optimization, entry.current
    result = CaseResult(
        case.id,
        case.workload.name,
        optimization.name,
        case.reference_name,
        case.size,
        rung=rung_number(case.workload, optimization.name),
        point=optimization.point,
        why=optimization.why,
        skipped=faults.skipped.get(case.id),
        error=faults.failed.get(case.id),
    )
    if result.skipped or result.error:
        return result
    result.promise = H200.promise(case, record.recorded_at)
    slower = faults.slower.get(case.id, 0.0)
    result.remembered = remember(record, histories)
    measured = [
        _measured(case.id, entry, _slow_down(record.processes[(number + more) % len(record.processes)], slower))
        for more in range(3)
    ]
    result.measurement = measured[0]
    result.summary, result.held = result.summarize(result.measurement), CASE_CHECKS
    result.verdicts = decide(result, Mode.GATE)
    if not all(one.good for one in result.verdicts):
        result.attempts = [Confirmation(one) for one in measured[1:]]
        result.verdicts = decide(result, Mode.GATE)
    if any(one.bad for one in result.verdicts):
        profiles = profiles_file.load(profiles_file.path_of(FOLDER.parent, FOLDER.name, case.workload.name))
        result.autopsy = explain(result, profiles.cases.get(f"{optimization.name}/{case.device_kind}"))
    return result


def _slow_down(builds: tuple[TimedBuild, ...], share: float) -> tuple[TimedBuild, ...]:
    return tuple(
        replace(
            build,
            pairs=tuple(replace(pair, optimized_ms=pair.optimized_ms * (1 + share)) for pair in build.pairs),
        )
        for build in builds
    )


def remember(record: Record, histories: tuple[History, History]) -> Remembered:
    """What a gate remembers of a record, beside all others."""
    counters, checks = record.optimized_counters, 2 * len(records()[0])
    return Remembered(
        *histories, match="exact", optimized_counters=counters, yardsticks=record.yardsticks, checks=checks
    )


def measurement(case_id: str, record: Record, builds: tuple[TimedBuild, ...]) -> Measurement:
    """A recorded process as it was measured, but for its costs."""
    outputs, cost = record.differences, SideCost(0.0, 0.0)
    counters = record.reference_counters, record.optimized_counters
    return Measurement(case_id, builds, "narrow", outputs, cost, cost, *counters)


def _measured(case_id: str, entry: Entry, builds: tuple[TimedBuild, ...]) -> Measurement:
    timed_s = sum(
        pair.reference_ms * build.reference_steps_per_block + pair.optimized_ms * build.optimized_steps_per_block
        for build in builds
        for pair in build.pairs
    )
    found = measurement(case_id, entry.current, builds)
    counters = {**found.optimized_counters, **_usual(found.optimized_counters)}
    timed = {"timer": "cuda events", "wall_s": timed_s / 1e3, "spent_s": {"measuring": timed_s / 1e3}}
    return replace(found, optimized_counters=counters, **timed)


def _usual(counters: Counters) -> Counters:
    """The host's time to enqueue a step: the record has the largest of all processes, which contracts do not allow."""
    return {"enqueue_ms": 0.8 * counters["enqueue_ms"]} if "enqueue_ms" in counters else {}

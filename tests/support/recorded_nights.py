"""Nights of an H200, made of the processes that `baselines/nvidia-h200` has recorded: every case with real samples.

A night takes one recorded process of each case, and the two after it as confirmations, and judges them against the
record. Costs were not recorded: the seconds of a case are those of its timed blocks. A night may slow sides down on
purpose, skip cases and fail them.

A simulated night is drawn around the records with the variation between their processes.
"""

from __future__ import annotations

import datetime
import random
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from gpugate.catalogue import catalogue
from gpugate.explaining.autopsy import explain
from gpugate.judging.rules import decide
from gpugate.measurement.record import (
    OTHERS,
    Counters,
    Difference,
    Measurement,
    SideCost,
    StepProfile,
    TimedBuild,
    Yardstick,
)
from gpugate.results.bill import Bills
from gpugate.results.case import CaseResult, Confirmation, Remembered
from gpugate.results.run import CaseNight, Mode, Night, Provenance, RunResult
from gpugate.results.series import rung_number
from gpugate.results.summary import History
from gpugate.results.verdict import CASE_CHECKS, Outcome
from gpugate.store import baseline
from gpugate.store.baseline import Entry, Record
from gpugate.units import round_stored
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
    newest = next(iter(entries.values())).record
    environment = replace(newest.environment, packages={**newest.environment.packages, **faults.packages})
    started = FIRST + datetime.timedelta(days=number)
    run = RunResult(environment, started.isoformat(), seed=number, gate=True, cases=found)
    run.yardsticks = [Yardstick(entry.record.yardsticks) for entry in list(entries.values())[::12]]
    run.source_hashes = {case.workload: entries[case.case_id].record.source_hash for case in found.values()}
    run.wall_s = sum(case.measurement.wall_s for case in found.values() if case.measurement)
    run.provenance = Provenance(commit=commit, branch="main")
    run.exit_status = int(any(not verdict.good for case in found.values() for verdict in case.verdicts))
    run.command = "pytest perf_tests -m gpu"
    return run


@cache
def records() -> tuple[dict[str, Entry], dict[str, History]]:
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


def _judged(case: Case, entry: Entry, history: History, number: int, faults: Faults) -> CaseResult:
    if case.id in faults.skipped or case.id in faults.failed:
        return _result(case, skipped=faults.skipped.get(case.id), error=faults.failed.get(case.id))
    record, slower = entry.record, faults.slower.get(case.id, 0.0)
    measured = [_measured(case.id, entry, (number + more) % len(record.processes), slower) for more in range(3)]
    remembered = remember(record, history)
    result = judge(case, record, remembered, measured[:1])
    if not all(one.good for one in result.verdicts):
        result = judge(case, record, remembered, measured)
    result.held = CASE_CHECKS
    if any(one.bad for one in result.verdicts):
        result.autopsy = explain(result, entry.profile)
    return result


def judge(case: Case, record: Record, remembered: Remembered, measured: Sequence[Measurement]) -> CaseResult:
    """The case with the verdicts of a gate on these processes, by what it remembers of the record."""
    result = _result(case, promise=H200.promise(case, record.recorded_at), remembered=remembered)
    result.measurement = measured[0]
    result.summary = result.summarize(measured[0])
    result.attempts = [Confirmation(one) for one in measured[1:]]
    result.verdicts = decide(result, Mode.GATE)
    return result


def _result(case: Case, **more: Any) -> CaseResult:
    workload, optimization = case.workload, case.optimization
    facts = {"rung": rung_number(workload, optimization.name), "point": optimization.point, "why": optimization.why}
    return CaseResult(case.id, workload.name, optimization.name, case.reference_name, case.size, **facts, **more)


def _slow_down(builds: tuple[TimedBuild, ...], share: float) -> tuple[TimedBuild, ...]:
    return tuple(
        replace(
            build,
            pairs=tuple(replace(pair, optimized_ms=pair.optimized_ms * (1 + share)) for pair in build.pairs),
        )
        for build in builds
    )


def remember(record: Record, history: History) -> Remembered:
    """What a gate remembers of a record, beside all others."""
    counters, checks = record.optimized_counters, 2 * len(records()[0])
    return Remembered(history, match="exact", optimized_counters=counters, yardsticks=record.yardsticks, checks=checks)


def measurement(case_id: str, record: Record, builds: tuple[TimedBuild, ...]) -> Measurement:
    """A recorded process as it was measured, but for its costs."""
    cost, counters = SideCost(0.0, 0.0), (record.reference_counters, record.optimized_counters)
    outputs = (Difference(0.0, 0.0, None, "fresh inputs"),)
    return Measurement(case_id, builds, "narrow", outputs, cost, cost, *counters)


def _measured(case_id: str, entry: Entry, index: int, slower: float) -> Measurement:
    """A recorded process with its bill; a side that is slower by a share does more work."""
    builds = _slow_down(entry.record.processes[index], slower)
    timed_s = sum(
        pair.reference_ms * build.reference_steps_per_block + pair.optimized_ms * build.optimized_steps_per_block
        for build in builds
        for pair in build.pairs
    )
    found = measurement(case_id, entry.record, builds)
    counters = {**found.optimized_counters, **_usual(found.optimized_counters)}
    timed = {"timer": "cuda events", "wall_s": timed_s / 1e3, "spent_s": {"measuring": timed_s / 1e3}}
    found = replace(found, optimized_counters=counters, **timed)
    bills = entry.record.bills[index] if entry.record.bills else None
    return found if bills is None else _with_bill(found, bills, slower)


def _with_bill(found: Measurement, bills: Bills, slower: float) -> Measurement:
    """Returns the measurement with the counts of its bills. In a slower step the longest kernel takes longer or, where
    kernels take less than half of it, the host."""
    counters, kernels_ms = dict(bills.optimized.counters), dict(bills.optimized.kernels_ms)
    step_ms = statistics.median(pair.optimized_ms for build in found.instances for pair in build.pairs)
    more_ms, of_kernels = step_ms * slower / (1 + slower), counters.get("kernel_ms", 0.0)
    item = "kernel_ms" if of_kernels >= step_ms / 2 else "cpu_ms"
    counters[item] = counters.get(item, 0.0) + more_ms
    named = [name for name in kernels_ms if name != OTHERS]
    if item == "kernel_ms" and named:
        kernels_ms[max(named, key=lambda name: kernels_ms[name])] += more_ms
    return replace(
        found,
        reference_counters={**found.reference_counters, **bills.reference.counters},
        optimized_counters={**found.optimized_counters, **counters},
        optimized_profile=StepProfile(
            {name: (1, ms) for name, ms in kernels_ms.items()}, kernel_ms=counters.get("kernel_ms", 0.0)
        ),
    )


def _usual(counters: Counters) -> Counters:
    """The host's time to enqueue a step: the record has the largest of all processes, which contracts do not allow."""
    return {"enqueue_ms": 0.8 * counters["enqueue_ms"]} if "enqueue_ms" in counters else {}


NIGHT_OF_DRIVER = 120
# Shares by which the speedup changes from a night on.
LEVELS = {"video/segment/cuda-graph/cuda": (200, -0.08), "resnet50-inference/cudnn-fused/cuda": (290, 0.06)}


def simulated_nights(nights: int = 365, second_machine: bool = False) -> list[Night]:
    """A year of nights of all cases. The commit changes every third night, the driver on NIGHT_OF_DRIVER, and the level
    of two cases by LEVELS; a second machine measures each seventh night, if wanted."""
    draw, found = random.Random(20261124), list[Night]()  # noqa: S311  # the same in every run
    for number in range(nights):
        found.append(_simulated(draw, number, "nvidia-h200-140-gib-700-w", 1.0))
        if second_machine and number % 7 == 0:
            found.append(_simulated(draw, number, "nvidia-h200-140-gib-500-w", 0.93))
    return found


def _simulated(draw: random.Random, number: int, machine: str, share: float) -> Night:
    entries, histories = records()
    environment = next(iter(entries.values())).record.environment
    driver = "590.10" if number >= NIGHT_OF_DRIVER else environment.driver
    commit = f"{random.Random(number // 3).getrandbits(160):040x}"  # noqa: S311
    return Night(
        name=f"night-{number}",
        started=FIRST + datetime.timedelta(days=number, hours=0 if share == 1 else 6),
        seed=number,
        machine=machine,
        environment=replace(environment, driver=driver),
        source_hashes={},
        provenance=Provenance(commit=commit, branch="main", host=machine),
        interrupted=False,
        cases={case_id: _drawn(draw, number, case_id, then, share) for case_id, then in histories.items()},
    )


def _drawn(draw: random.Random, number: int, case_id: str, history: History, share: float) -> CaseNight:
    cv = min(0.05, history.speedup_cv or 0.01)
    since, change = LEVELS.get(case_id, (0, 0.0))
    level = share * (1 + (change if number >= since else 0.0))
    factor = level * (1 + draw.gauss(0, cv / 2))
    speedup, optimized_ms = history.speedup * factor, history.optimized_ms / factor
    metrics = {
        "speedup": (speedup, speedup * (1 - cv), speedup * (1 + cv)),
        "optimized_ms": (optimized_ms, optimized_ms * (1 - cv), optimized_ms * (1 + cv)),
        "reference_ms": (history.reference_ms,),
        "recorded_speedup": (history.speedup,),
    }
    stored = {name: tuple(map(round_stored, values)) for name, values in metrics.items()}
    return CaseNight(Outcome.PASS if level > 0.95 * share else Outcome.REGRESSED, stored)

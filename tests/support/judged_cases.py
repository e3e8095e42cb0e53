"""Made-up cases for the rules: measurements, records with and without a bill, and duets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpugate.judging.rules import decide
from gpugate.measurement.record import Counters, Difference, Measurement, StepProfile
from gpugate.results.bill import Bill, Bills
from gpugate.results.case import CaseResult, Confirmation, Promise, Remembered
from gpugate.results.duet import DuetProcess, RecordedCode
from gpugate.results.run import Mode
from gpugate.results.summary import History
from gpugate.results.verdict import Check, Verdict
from gpugate.statistics.variation import Control, Variation
from gpugate.workload import Contract, Size, Tolerance
from tests.conftest import TWO_CORES
from tests.support.stored_runs import COUNTED, PROMISE, measurement, timed_build

CASE_ID = "net/fast/cuda"
COMMIT = "0123456789abcdef"
COSTS = {"kernel_ms": 8.0, "host_to_device_ms": 1.0, "cpu_ms": 4.0, "spinning": 0.0}
KERNELS = {"sm90_xmma_fprop": 5.0, "elementwise_kernel": 3.0}
LOOSE = Tolerance(1e-3, 1e-2)
# Of 30 and 10 ms. The slope is 0.5, and the tolerance of the wall time about 2 %.
RECORDED = History(3.0, 0.003, 30.0, 10.0, 0.003, 5, control=Control(0.5, Variation(0.003, 4.0)))


def measured(
    optimized_ms: float = 10.0, reference_ms: float = 30.0, spread: float = 0.0, error: float = 0.0, **counted: float
) -> Measurement:
    """Three builds of four pairs; `spread` is half the range of the optimized side's times, as a share."""
    times = [optimized_ms * (1 + spread * part) for part in (-1, -0.3, 0.3, 1)]
    found = measurement(
        *[timed_build(reference_ms, times)] * 3, differences=(Difference(error, error, None, "fresh inputs"),)
    )
    return replace(found, reference_counters=COUNTED, optimized_counters={**COUNTED, **counted})


def with_bill(
    found: Measurement, kernels_ms: Mapping[str, float] = KERNELS, reference: Counters = COSTS, **items: float
) -> Measurement:
    """The measurement with a bill: the counters of both sides are COSTS, but for the `items` of the optimized one."""
    profile = StepProfile(kernels={name: (1, ms) for name, ms in kernels_ms.items()})
    return replace(
        found,
        reference_counters={**found.reference_counters, **reference},
        optimized_counters={**found.optimized_counters, **COSTS, "kernel_ms": sum(kernels_ms.values()), **items},
        reference_profile=profile,
        optimized_profile=profile,
    )


def bills(processes: int = 5, spread: float = 0.001, **items: float) -> tuple[Bills, ...]:
    """Recorded bills of COSTS and KERNELS, of which `spread` is the step between processes."""
    found = []
    for process in range(processes):
        factor = 1 + spread * (process - (processes - 1) / 2)
        times = {name: ms * factor for name, ms in COSTS.items()}
        kernels = {name: ms * factor for name, ms in KERNELS.items()}
        side = Bill({**COUNTED, **times}, kernels)
        found.append(Bills(side, replace(side, counters={**side.counters, **items})))
    return tuple(found)


def record(then: History = RECORDED, **changed: Any) -> Remembered:
    return replace(Remembered(then, "exact", optimized_counters=COUNTED), **changed)


def billed(**items: float) -> Remembered:
    """The record with a bill."""
    return record(replace(RECORDED, bills=bills(5, 0.001, **items)))


def case(first: Measurement, *others: Confirmation | Measurement, **changed: Any) -> CaseResult:
    """A case of a promise of 1.5x with a record, measured by this process and further ones."""
    attempts = [one if isinstance(one, Confirmation) else Confirmation(one) for one in others]
    result = CaseResult(CASE_ID, "net", "fast", "baseline", Size(1, 0, 0), first, attempts=attempts)
    result.promise = PROMISE
    result.remembered = record()
    return replace(result, **changed)


def judge_equivalence(measurement: Measurement, allowed: Tolerance) -> Verdict:
    """The verdict about the outputs of one process."""
    return _judge("equivalence", measurement, Promise(None, allowed, None), None)


def judge_counters(
    measurement: Measurement, contract: Contract | None, remembered: Remembered | None = None
) -> Verdict:
    """The verdict about the bill and the contract of one process."""
    return _judge("counters", measurement, Promise(None, LOOSE, contract), remembered)


def _judge(check: Check, measurement: Measurement, promise: Promise, remembered: Remembered | None) -> Verdict:
    result = replace(case(measurement, promise=promise, remembered=remembered), case_id=measurement.case_id)
    return verdicts(result)[check]


def verdicts(result: CaseResult, mode: Mode = Mode.GATE) -> dict[str, Verdict]:
    """The verdicts of a case by their checks."""
    return {one.check: one for one in decide(result, mode)}


def code(head_ms: float | None, spread: float = 0.0, **changed: Any) -> RecordedCode:
    """A duet of four processes in which a step of the recorded code took 10 ms; None: the code is the recorded one."""
    if head_ms is None:
        return replace(RecordedCode(COMMIT, unchanged=True), **changed)

    def side(base: bool) -> float:
        return 10.0 if base else float(head_ms or 0.0)

    processes = []
    for swapped in (False, True, False, True):
        reference, optimized = (side(base=not swapped), side(base=swapped))
        one = measured(optimized, reference, spread)
        processes.append(DuetProcess(swapped, TWO_CORES, (CASE_ID,), {CASE_ID: one}))
    return replace(RecordedCode(COMMIT, processes=tuple(processes)), **changed)

"""The kernels of a bill; the golden words have its items, what was not recorded, and what was not measured."""

from dataclasses import replace

from gpugate.measurement.record import OTHERS, StepProfile
from gpugate.report.tables import bill_table
from gpugate.results.bill import Bill, Bills
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from tests.support.stored_runs import MACHINE, RECORDED, STARTED, case, measured

THEIRS = {"kernel_ms": 2.5, "kernels": 9.0, "cpu_ms": 1.0, "spinning": 1.0}
OURS = {"kernel_ms": 1.25, "kernels": 3.0, "cpu_ms": 0.5, "spinning": 0.0, "memsets": 4.0}


def billed(recorded: list[dict[str, float] | None], **changed: object) -> CaseResult:
    """A case with these counters of the optimized side in the recorded processes."""
    bills = tuple(counters and Bills(Bill({}, {}), Bill(counters, {})) for counters in recorded)
    found = measured("tiny/a/cuda", 3.0, reference_counters=THEIRS, optimized_counters=OURS, **changed)
    return case("a", measurement=found, remembered=replace(RECORDED, current=replace(RECORDED.current, bills=bills)))


def run(*cases: CaseResult) -> RunResult:
    return RunResult(MACHINE, STARTED, seed=7, cases={one.case_id: one for one in cases})


def test_the_slowest_kernels_stand_before_and_after() -> None:
    """A kernel that is gone is as slow as it was; the rest of all others is no kernel."""
    made = billed([])
    assert made.measurement is not None
    kernels = {"gemm": 1.0, "copy": 0.1, "relu": 0.2, OTHERS: 9.0}
    profile = StepProfile(kernels={name: (1.0, ms) for name, ms in kernels.items()})
    recorded = Bills(Bill({}, {}), Bill({}, {"gemm": 0.5, "old": 0.75, "tiny": 0.01}))
    record = replace(RECORDED.current, bills=(recorded, recorded))
    made.measurement = replace(made.measurement, optimized_profile=profile)
    table = bill_table(run(replace(made, remembered=replace(RECORDED, current=record))))
    assert table.rows[-3:] == (
        ("tiny/a/cuda", "gemm", "", "1.00 ms", "0.500 ms"),
        ("tiny/a/cuda", "old", "", "", "0.750 ms"),
        ("tiny/a/cuda", "relu", "", "0.200 ms", ""),
    )

"""The rules of every check as tables: what was measured, the outcome and the code that decided."""

from dataclasses import replace

import pytest

from gpugate.measurement.record import Difference
from gpugate.results.case import CaseResult, Confirmation, Promise
from gpugate.results.reason import ReasonCode
from gpugate.results.run import Mode
from gpugate.results.verdict import CASE_CHECKS, Check, NextStep, Outcome
from gpugate.workload import Contract, Limit, Size
from tests.support.judged_cases import (
    COUNTED,
    LOOSE,
    RECORDED,
    billed,
    case,
    code,
    measured,
    record,
    verdicts,
    with_bill,
)

PASS, IMPROVED, REGRESSED = Outcome.PASS, Outcome.IMPROVED, Outcome.REGRESSED
UNDECIDED, ENV_INVALID, NOT_ENGAGED = Outcome.UNDECIDED, Outcome.ENV_INVALID, Outcome.NOT_ENGAGED
FAILED = Confirmation(None, "a fresh process gave no result")
NAN = (Difference(float("inf"), float("inf"), None, "timed steps", "the output has NaN"),)
NOT_COMPARABLE = replace(measured(), instances=(), differences=NAN, optimized_counters={})
NOT_COUNTED = replace(measured(), optimized_counters={}, counters_missing="the profiler is in use")


def promised(minimum: float | None, contract: Contract | None = None) -> Promise:
    return Promise(minimum, LOOSE, contract)


# What was measured, the outcome, the code that decided, and in some rows the next step.
Table = list[tuple[CaseResult, Outcome, str] | tuple[CaseResult, Outcome, str, NextStep | None]]
OUTPUTS: Table = [
    (case(measured()), PASS, "outputs_agree"),
    (case(measured(error=0.5)), Outcome.WRONG, "outputs_differ", NextStep.TRACE),
    (case(measured(), measured(error=0.5)), Outcome.WRONG, "outputs_differ"),  # in one process of several
    (case(replace(measured(), differences=())), UNDECIDED, "nothing_measured"),
    (case(measured(error=0.5), environment_problem="hot"), Outcome.WRONG, "outputs_differ"),
    (case(replace(measured(), differences=NAN)), Outcome.WRONG, "outputs_differ", NextStep.TRACE),
]
# The speedup against its promise of 1.5x. The reference takes 30 ms: 3x are measured, and 1.3x at 23 ms.
FAST, SLOW, TOO_SLOW, NEAR = measured(10.0), measured(11.5), measured(23.0), measured(20.0, spread=0.1)
ON_CPU, OTHERS = "net/fast/cpu", {**COUNTED, "other_cores": 1.0}
NOISY, BUSY = measured(19.0, spread=0.1), replace(NEAR, optimized_counters=OTHERS)
THROTTLED, IMPOSSIBLE = measured(throttled_periods=0.77), replace(FAST, ceilings={"matmul_bf16_tflops": 800.0})
SPEEDUP: Table = [
    (case(FAST), PASS, "promise_kept"),
    (case(SLOW), PASS, "promise_kept"),  # slower than recorded, and it still pays
    (case(TOO_SLOW, promise=promised(None)), PASS, "promise_kept"),  # nothing is promised
    (case(TOO_SLOW), REGRESSED, "speedup_below_promise", NextStep.MEASURE_LONGER),
    (case(TOO_SLOW, TOO_SLOW), REGRESSED, "speedup_below_promise"),
    (case(TOO_SLOW, FAST), UNDECIDED, "promise_open"),
    (case(TOO_SLOW, FAST, FAST), PASS, "promise_kept"),
    (case(FAST, TOO_SLOW, TOO_SLOW), REGRESSED, "speedup_below_promise"),
    (case(TOO_SLOW, FAILED), UNDECIDED, "not_confirmed"),
    (case(NEAR), UNDECIDED, "promise_open"),
    (case(NOISY), PASS, "promise_kept"),  # by as little as the recorded processes differ
    (case(NOISY, remembered=None), UNDECIDED, "promise_open"),
    (case(replace(NOISY, optimized_counters=OTHERS)), UNDECIDED, "promise_open"),
    # Without a record, only an interval that crosses the promise is undecided, however wide it is.
    (case(measured(10.0, spread=0.2), remembered=None), PASS, "promise_kept"),
    (case(measured(20.0, spread=0.2), remembered=None), UNDECIDED, "promise_open"),
    (case(measured(30.0, spread=0.2), remembered=None), REGRESSED, "speedup_below_promise"),
    (case(NEAR, case_id=ON_CPU), UNDECIDED, "promise_open", NextStep.MEASURE_LONGER),
    (case(BUSY, case_id=ON_CPU), UNDECIDED, "promise_open", NextStep.FREE_CORES),
    (case(replace(NEAR, stopped_because="noise"), case_id=ON_CPU), UNDECIDED, "promise_open", NextStep.FREE_CORES),
    (case(THROTTLED, environment_problem="throttled"), ENV_INVALID, "machine_unfit", NextStep.RAISE_QUOTA),
    (
        case(replace(measured(1.0), ceilings={"matmul_bf16_tflops": 800.0}), size=Size(1, 1e13, 0.0)),
        UNDECIDED,
        "impossible_rate",
        NextStep.CHECK_SIZE,
    ),
    (
        case(replace(measured(1.0, other_cores=1.2), ceilings={"matmul_bf16_tflops": 800.0}), size=Size(1, 1e13, 0.0)),
        UNDECIDED,
        "impossible_rate",
        NextStep.CHECK_SIZE,
    ),
    (case(TOO_SLOW, recorded_code=code(10.0)), REGRESSED, "speedup_below_promise"),  # the machine is no excuse
    (case(TOO_SLOW, recorded_code=code(30.0)), REGRESSED, "speedup_below_promise", NextStep.FIND_COMMIT),
    (case(TOO_SLOW, launch_slowdown=1.5), REGRESSED, "speedup_below_promise"),
    (case(TOO_SLOW, environment_problem="hot"), ENV_INVALID, "machine_unfit", NextStep.COOL_MACHINE),
    (case(replace(TOO_SLOW, reference_slowdown=3.0)), UNDECIDED, "reference_slowed", NextStep.FREE_CORES),
    (case(replace(FAST, inert=True)), PASS, "promise_kept"),
    (case(replace(measured(30.0), inert=True)), NOT_ENGAGED, "did_nothing"),
    (case(replace(FAST, instances=())), UNDECIDED, "nothing_measured"),
    (case(measured(ranks=2.0), case_id="net/fast/cpu"), ENV_INVALID, "machine_unfit", NextStep.USE_CUDA),
]
BILL, GREW = with_bill(measured()), with_bill(measured(), kernel_ms=9.0)
GRAPHS = promised(1.5, Contract(engaged=(Limit("graph_launches", at_least=1),)))
SOFT = promised(1.5, Contract((Limit("overlap_fraction", at_least=0.5),), (Limit("enqueue_ms", at_most=1.0),)))
LAGGING, OVERLAPPED = (measured(overlap_fraction=share, enqueue_ms=0.5) for share in (0.1, 0.9))
LATE, LATE_AND_LAGGING = (measured(overlap_fraction=share, enqueue_ms=2.0) for share in (0.9, 0.1))
COUNTERS: Table = [
    (case(measured()), PASS, "counted"),
    (case(BILL, remembered=billed()), PASS, "counted"),
    (case(GREW, remembered=billed()), REGRESSED, "item_grew", NextStep.ACCEPT),
    (case(GREW, remembered=billed(), recorded_code=code(9.0)), REGRESSED, "item_grew", NextStep.ACCEPT),
    (case(measured(grown_bytes=64.0)), REGRESSED, "item_grew", NextStep.TRACE),
    (case(GREW, BILL, remembered=billed()), PASS, "counted"),  # no further process has it
    (case(GREW, FAILED, remembered=billed()), UNDECIDED, "not_confirmed"),
    (case(GREW, remembered=billed(), launch_slowdown=1.5), REGRESSED, "item_grew"),  # a slow host changes no bill
    (case(GREW, remembered=None), PASS, "counted"),
    (case(measured(graph_launches=1.0), environment_problem="hot"), REGRESSED, "item_grew"),
    (case(measured(kernels=59.0)), REGRESSED, "item_grew"),
    (case(measured(kernels=59.0), remembered=None), REGRESSED, "limit_broken"),
    (case(measured(), promise=GRAPHS), NOT_ENGAGED, "limit_broken"),
    (case(measured(graph_launches=1.0), measured(), promise=GRAPHS), NOT_ENGAGED, "limit_broken"),
    (case(replace(measured(), not_engaged="it fell back")), NOT_ENGAGED, "not_engaged", NextStep.TRACE),
    (case(LAGGING, promise=SOFT), NOT_ENGAGED, "limit_broken", NextStep.TRACE),
    (case(LAGGING, OVERLAPPED, promise=SOFT), PASS, "counted"),
    (case(LATE_AND_LAGGING, promise=SOFT, launch_slowdown=1.5), UNDECIDED, "slow_host"),
    (case(LATE, promise=SOFT, environment_problem="hot"), ENV_INVALID, "machine_unfit"),
    (case(LATE, promise=SOFT), REGRESSED, "limit_broken", NextStep.TRACE),
    (case(NOT_COUNTED), UNDECIDED, "nothing_measured", NextStep.USE_CUDA),
    (case(NOT_COUNTED, promise=promised(1.5)), PASS, "counted"),
    (case(NOT_COMPARABLE), UNDECIDED, "nothing_measured"),
    # A further process that counted nothing does not count.
    (case(measured(), NOT_COUNTED), PASS, "counted"),
    (case(measured(kernels=60.0), NOT_COUNTED), REGRESSED, "item_grew"),
]
BILLED = with_bill(SLOW)
FEW = replace(code(14.0), processes=code(14.0).processes[:2])  # a slowdown needs three
WALL: Table = [
    (case(measured(10.05)), PASS, "wall_as_recorded"),
    (case(measured(10.1, spread=0.02)), UNDECIDED, "wall_open", NextStep.MEASURE_LONGER),
    # The record alone.
    (case(SLOW), REGRESSED, "slower_than_record"),
    (case(SLOW, SLOW), REGRESSED, "slower_than_record"),
    (case(SLOW, measured()), UNDECIDED, "wall_open"),
    (case(SLOW, measured(), measured()), PASS, "wall_as_recorded"),
    (case(SLOW, FAILED), UNDECIDED, "not_confirmed", NextStep.REPEAT),
    (case(SLOW, remembered=record(match="same device")), UNDECIDED, "slower_than_record"),
    (case(measured(9.0)), IMPROVED, "faster_than_record", NextStep.RECORD),
    # The record and its bill.
    (case(BILLED, remembered=billed()), UNDECIDED, "slower_than_record"),  # nothing shows the host or the code
    (case(with_bill(SLOW, kernel_ms=9.0), remembered=billed()), REGRESSED, "slower_than_record"),
    (case(with_bill(measured(9.0)), remembered=billed()), PASS, "the_machine"),
    (case(with_bill(measured(9.0), {"sm90_xmma_fprop": 5.0}), remembered=billed()), IMPROVED, "faster_than_record"),
    # The duet with the recorded code.
    (case(measured(10.05), recorded_code=code(10.8)), REGRESSED, "code_slower"),
    (case(SLOW, recorded_code=code(10.8)), REGRESSED, "code_slower", NextStep.FIND_COMMIT),
    (case(SLOW, recorded_code=code(10.8), launch_slowdown=1.5), REGRESSED, "code_slower"),
    (case(SLOW, recorded_code=code(10.8), remembered=None), REGRESSED, "code_slower"),
    (case(SLOW, recorded_code=code(10.0)), PASS, "the_machine"),
    (case(BILLED, recorded_code=code(10.0), remembered=billed()), PASS, "the_machine"),
    (case(SLOW, recorded_code=code(9.0)), PASS, "the_machine"),
    (case(SLOW, recorded_code=code(None)), PASS, "the_machine"),  # the code is that of the record
    (case(SLOW, recorded_code=code(10.0), remembered=record(match="same device")), UNDECIDED, "slower_than_record"),
    (case(SLOW, recorded_code=code(10.0, spread=0.3)), UNDECIDED, "slower_than_record"),  # undecided
    (case(measured(), recorded_code=FEW), UNDECIDED, "code_seems_slower", NextStep.FIND_COMMIT),
    (case(SLOW, recorded_code=code(None, unchanged=False, problem="gone")), REGRESSED, "slower_than_record"),
    (case(measured(), recorded_code=code(10.0, spread=0.3)), PASS, "wall_as_recorded"),
    (case(measured(9.0), recorded_code=code(9.0)), IMPROVED, "faster_than_record"),
    (case(measured(9.0), recorded_code=code(10.0)), PASS, "the_machine"),
    # A slow host.
    (case(measured(10.05), launch_slowdown=1.5), PASS, "wall_as_recorded"),
    (case(SLOW, launch_slowdown=1.5), UNDECIDED, "slow_host", NextStep.COOL_MACHINE),
    (case(SLOW, launch_slowdown=1.2), REGRESSED, "slower_than_record"),
    (case(BILLED, launch_slowdown=1.5, remembered=billed()), PASS, "the_machine"),
    (case(SLOW, launch_slowdown=1.5, recorded_code=code(10.0)), PASS, "the_machine"),
    (case(with_bill(SLOW, kernel_ms=9.0), launch_slowdown=1.5, remembered=billed()), UNDECIDED, "slow_host"),
    # No record, and no time. No baseline may hold a wrong output.
    (case(measured(error=0.5), remembered=None), Outcome.NO_BASELINE, "no_record", None),
    (case(SLOW, remembered=None), Outcome.NO_BASELINE, "no_record", NextStep.RECORD),
    (case(SLOW, remembered=record(replace(RECORDED, processes=2))), Outcome.NO_BASELINE, "no_record"),
    (case(SLOW, environment_problem="hot"), ENV_INVALID, "machine_unfit"),
    (case(replace(SLOW, reference_slowdown=3.0)), UNDECIDED, "reference_slowed"),
    (case(replace(SLOW, instances=())), UNDECIDED, "nothing_measured"),
]
TABLES: dict[Check, Table] = {"equivalence": OUTPUTS, "speedup": SPEEDUP, "counters": COUNTERS, "throughput": WALL}


@pytest.mark.parametrize(
    ("check", "found", "outcome", "reason", "step"),
    [(check, *row[:3], row[3:]) for check, table in TABLES.items() for row in table],
)
def test_the_outcome_its_reason_and_the_next_step(
    check: Check, found: CaseResult, outcome: Outcome, reason: str, step: tuple[NextStep | None, ...]
) -> None:
    verdict = verdicts(found)[check]
    assert (verdict.outcome, verdict.code.value) == (outcome, reason)
    assert step in ((), (verdict.next_step,))


def test_a_case_without_a_record_passes_but_in_a_gate() -> None:
    for mode, outcome in ((Mode.DEVELOPER, PASS), (Mode.GATE, Outcome.NO_BASELINE)):
        wall = verdicts(case(SLOW, remembered=None), mode)["throughput"]
        assert (wall.outcome, wall.code) == (outcome, ReasonCode.NO_RECORD)


@pytest.mark.parametrize(
    ("check", "found", "expected"),
    [
        (
            "throughput",
            case(measured(10.05), recorded_code=code(10.0, machine_changes=("another host",))),
            "wall_as_recorded code_not_slower record_differs",
        ),
        (
            "throughput",
            case(SLOW, launch_slowdown=1.5, recorded_code=code(10.0)),
            "the_machine slow_host slower_than_record code_not_slower",
        ),
        ("speedup", case(FAST, FAST), "promise_kept pairs"),
        ("speedup", case(TOO_SLOW, environment_problem="hot"), "machine_unfit speedup_below_promise pairs"),
        ("counters", case(GREW, BILL, remembered=billed()), "counted item_grew in_some_processes"),
        ("counters", case(BILL, remembered=billed()), "counted"),
    ],
)
def test_rules_that_do_not_decide_add_their_reasons(check: Check, found: CaseResult, expected: str) -> None:
    assert " ".join(one.code.value for one in verdicts(found)[check].reasons) == expected


def test_of_threads_that_wait_in_a_loop_no_time_is_compared() -> None:
    on_cpu = replace(SLOW, optimized_counters={"cpu_ms": 8.0, "spinning": 1.0})
    found = verdicts(case(on_cpu, remembered=billed(spinning=1.0), recorded_code=code(None)))
    assert found["throughput"].reason == "wall +15.0 %, bill not compared, the recorded code itself: the machine"
    assert found["counters"].reasons[1].code is ReasonCode.NO_BILL


ANY_CASE = [row[0] for table in TABLES.values() for row in table]
CHANGES: list[dict[str, object]] = [
    {"environment_problem": "hot"},
    {"launch_slowdown": 1.5},
    {"remembered": None},
    {"remembered": record(replace(RECORDED, processes=3))},
    {"recorded_code": code(None)},
    {"recorded_code": code(10.8)},
]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("changed", CHANGES, ids=lambda changed: next(iter(changed)))
def test_every_verdict_makes_sense(changed: dict[str, object], mode: Mode) -> None:
    """No time of an unfit machine convicts, and no wall time of the same code, of a slow host, or without a record."""
    for found in (replace(one, **changed) for one in ANY_CASE):
        by_check = verdicts(found, mode)
        assert tuple(by_check) == CASE_CHECKS
        assert all(one.reason for one in by_check.values())  # in words
        too_few = found.remembered is None or found.remembered.current.processes < 5
        assert too_few or Outcome.NO_BASELINE not in [one.outcome for one in by_check.values()]
        speedup, wall = by_check["speedup"], by_check["throughput"]
        if found.environment_problem is not None:
            assert not {speedup.outcome, wall.outcome} & {REGRESSED, IMPROVED}
        if wall.outcome is REGRESSED and wall.code is not ReasonCode.CODE_SLOWER:
            assert found.remembered is not None
            assert found.launch_slowdown != 1.5
            assert found.recorded_code is None or not found.recorded_code.unchanged

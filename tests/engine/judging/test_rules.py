"""The rules of every check as tables: what was measured, the outcome and the code that decided."""

from dataclasses import replace

import pytest

from gpugate.judging.rules import decide
from gpugate.measurement.record import Difference
from gpugate.results.case import CaseResult, Confirmation, CoresChanged, Promise
from gpugate.results.reason import ReasonCode
from gpugate.results.run import Mode
from gpugate.results.verdict import CASE_CHECKS, Check, NextStep, Outcome
from gpugate.workload import Contract, Limit
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
INCONCLUSIVE, ENV_INVALID, NOT_ENGAGED = Outcome.INCONCLUSIVE, Outcome.ENV_INVALID, Outcome.NOT_ENGAGED
FAILED = Confirmation(None, "a fresh process gave no result")
NAN = (Difference(float("inf"), float("inf"), None, "timed steps", "the output has NaN"),)
NOT_COMPARABLE = replace(measured(), instances=(), differences=NAN, optimized_counters={})
NOT_COUNTED = replace(measured(), optimized_counters={}, counters_missing="the profiler is in use")


def promised(minimum: float | None, contract: Contract | None = None) -> Promise:
    return Promise(minimum, LOOSE, contract)


Table = list[tuple[CaseResult, Outcome, str]]
OUTPUTS: Table = [
    (case(measured()), PASS, "outputs_agree"),
    (case(measured(error=0.5)), Outcome.WRONG, "outputs_differ"),
    (case(measured(), measured(error=0.5)), Outcome.WRONG, "outputs_differ"),  # in one process of several
    (case(replace(measured(), differences=())), INCONCLUSIVE, "nothing_measured"),
    (case(measured(error=0.5), environment_problem="hot"), Outcome.WRONG, "outputs_differ"),
]
# The speedup against its promise of 1.5x. The reference takes 30 ms: 3x are measured, and 1.3x at 23 ms.
FAST, SLOW, TOO_SLOW, NEAR = measured(10.0), measured(11.5), measured(23.0), measured(20.0, spread=0.1)
SPEEDUP: Table = [
    (case(FAST), PASS, "promise_kept"),
    (case(FAST, remembered=None), PASS, "promise_kept"),  # the promise needs no record
    (case(SLOW), PASS, "promise_kept"),  # slower than recorded, and it still pays
    (case(TOO_SLOW, promise=promised(None)), PASS, "promise_kept"),  # nothing is promised
    (case(TOO_SLOW), REGRESSED, "speedup_below_promise"),
    (case(TOO_SLOW, TOO_SLOW), REGRESSED, "speedup_below_promise"),
    (case(TOO_SLOW, FAST), INCONCLUSIVE, "promise_open"),
    (case(TOO_SLOW, FAST, FAST), PASS, "promise_kept"),
    (case(FAST, TOO_SLOW, TOO_SLOW), REGRESSED, "speedup_below_promise"),
    (case(TOO_SLOW, FAILED), INCONCLUSIVE, "not_confirmed"),
    (case(NEAR), INCONCLUSIVE, "promise_open"),
    (case(TOO_SLOW, recorded_code=code(10.0)), REGRESSED, "speedup_below_promise"),  # the machine is no excuse
    (case(TOO_SLOW, launch_slowdown=1.5), REGRESSED, "speedup_below_promise"),
    (case(TOO_SLOW, environment_problem="hot"), ENV_INVALID, "machine_unfit"),
    (case(replace(TOO_SLOW, reference_slowdown=3.0)), INCONCLUSIVE, "reference_slowed"),
    (case(replace(FAST, inert=True)), PASS, "promise_kept"),
    (case(replace(measured(30.0), inert=True)), NOT_ENGAGED, "did_nothing"),
    (case(replace(FAST, instances=())), INCONCLUSIVE, "nothing_measured"),
    (case(replace(FAST, instances=(), differences=NAN)), Outcome.WRONG, "nothing_measured"),
    (case(measured(ranks=2.0), case_id="net/fast/cpu"), INCONCLUSIVE, "ranks_share_cores"),
]
BILL, GREW = with_bill(measured()), with_bill(measured(), kernel_ms=9.0)
GRAPHS = promised(1.5, Contract(engaged=(Limit("graph_launches", at_least=1),)))
SOFT = promised(1.5, Contract((Limit("overlap_fraction", at_least=0.5),), (Limit("enqueue_ms", at_most=1.0),)))
LAGGING, OVERLAPPED = (measured(overlap_fraction=share, enqueue_ms=0.5) for share in (0.1, 0.9))
LATE, LATE_AND_LAGGING = (measured(overlap_fraction=share, enqueue_ms=2.0) for share in (0.9, 0.1))
COUNTERS: Table = [
    (case(measured()), PASS, "counted"),
    (case(BILL, remembered=billed()), PASS, "counted"),
    (case(GREW, remembered=billed()), REGRESSED, "item_grew"),
    (case(GREW, GREW, remembered=billed()), REGRESSED, "item_grew"),
    (case(GREW, BILL, remembered=billed()), PASS, "counted"),  # no further process has it
    (case(GREW, FAILED, remembered=billed()), INCONCLUSIVE, "not_confirmed"),
    (case(GREW, remembered=billed(), launch_slowdown=1.5), REGRESSED, "item_grew"),  # a slow host changes no bill
    (case(GREW, remembered=None), PASS, "counted"),
    (case(measured(graph_launches=1.0)), REGRESSED, "item_grew"),
    (case(measured(graph_launches=1.0), environment_problem="hot"), REGRESSED, "item_grew"),
    (case(measured(kernels=59.0)), REGRESSED, "item_grew"),
    (case(measured(kernels=59.0), remembered=None), REGRESSED, "limit_broken"),
    (case(measured(), promise=GRAPHS), NOT_ENGAGED, "limit_broken"),
    (case(measured(graph_launches=1.0), measured(), promise=GRAPHS), NOT_ENGAGED, "limit_broken"),
    (case(replace(measured(), not_engaged="it fell back")), NOT_ENGAGED, "not_engaged"),
    (case(LAGGING, promise=SOFT), NOT_ENGAGED, "limit_broken"),
    (case(LAGGING, OVERLAPPED, promise=SOFT), PASS, "counted"),
    (case(LATE_AND_LAGGING, promise=SOFT, launch_slowdown=1.5), INCONCLUSIVE, "slow_host"),
    (case(LATE, promise=SOFT, environment_problem="hot"), ENV_INVALID, "machine_unfit"),
    (case(LATE, promise=SOFT), REGRESSED, "limit_broken"),
    (case(NOT_COUNTED), INCONCLUSIVE, "nothing_measured"),
    (case(NOT_COUNTED, promise=promised(1.5)), PASS, "counted"),
    (case(NOT_COMPARABLE), Outcome.WRONG, "nothing_measured"),
    # A further process that counted nothing does not count.
    (case(measured(), NOT_COUNTED), PASS, "counted"),
    (case(measured(kernels=60.0), NOT_COUNTED), REGRESSED, "item_grew"),
]
BILLED = with_bill(SLOW)
WALL: Table = [
    (case(measured(10.05)), PASS, "wall_as_recorded"),
    (case(measured(10.1, spread=0.02)), INCONCLUSIVE, "wall_open"),
    # The record alone.
    (case(SLOW), REGRESSED, "slower_than_record"),
    (case(SLOW, SLOW), REGRESSED, "slower_than_record"),
    (case(SLOW, measured()), INCONCLUSIVE, "wall_open"),
    (case(SLOW, measured(), measured()), PASS, "wall_as_recorded"),
    (case(SLOW, FAILED), INCONCLUSIVE, "not_confirmed"),
    (case(SLOW, remembered=record(match="same device")), INCONCLUSIVE, "slower_than_record"),
    (case(measured(9.0)), IMPROVED, "faster_than_record"),
    # The record and its bill.
    (case(BILLED, remembered=billed()), INCONCLUSIVE, "slower_than_record"),  # nothing shows the host or the code
    (case(with_bill(SLOW, kernel_ms=9.0), remembered=billed()), REGRESSED, "slower_than_record"),
    (case(with_bill(measured(9.0)), remembered=billed()), PASS, "the_machine"),
    (case(with_bill(measured(9.0), {"sm90_xmma_fprop": 5.0}), remembered=billed()), IMPROVED, "faster_than_record"),
    # The duet with the recorded code.
    (case(measured(10.05), recorded_code=code(10.8)), REGRESSED, "code_slower"),
    (case(SLOW, recorded_code=code(10.8)), REGRESSED, "code_slower"),
    (case(SLOW, recorded_code=code(10.8), launch_slowdown=1.5), REGRESSED, "code_slower"),
    (case(SLOW, recorded_code=code(10.8), remembered=None), REGRESSED, "code_slower"),
    (case(SLOW, recorded_code=code(10.0)), PASS, "the_machine"),
    (case(BILLED, recorded_code=code(10.0), remembered=billed()), PASS, "the_machine"),
    (case(SLOW, recorded_code=code(9.0)), PASS, "the_machine"),
    (case(SLOW, recorded_code=code(None)), PASS, "the_machine"),  # the code is that of the record
    (case(SLOW, recorded_code=code(10.0, spread=0.3)), INCONCLUSIVE, "slower_than_record"),  # undecided
    (case(SLOW, recorded_code=code(None, unchanged=False, problem="gone")), REGRESSED, "slower_than_record"),
    (case(measured(), recorded_code=code(10.0, spread=0.3)), PASS, "wall_as_recorded"),
    (case(measured(9.0), recorded_code=code(9.0)), IMPROVED, "faster_than_record"),
    (case(measured(9.0), recorded_code=code(10.0)), PASS, "the_machine"),
    # A slow host.
    (case(measured(10.05), launch_slowdown=1.5), PASS, "wall_as_recorded"),
    (case(SLOW, launch_slowdown=1.5), INCONCLUSIVE, "slow_host"),
    (case(SLOW, launch_slowdown=1.2), REGRESSED, "slower_than_record"),
    (case(BILLED, launch_slowdown=1.5, remembered=billed()), PASS, "the_machine"),
    (case(SLOW, launch_slowdown=1.5, recorded_code=code(10.0)), PASS, "the_machine"),
    (case(with_bill(SLOW, kernel_ms=9.0), launch_slowdown=1.5, remembered=billed()), INCONCLUSIVE, "slow_host"),
    # No record, and no time.
    (case(SLOW, remembered=None), Outcome.NO_BASELINE, "no_record"),
    (case(SLOW, remembered=None, cores_changed=CoresChanged(8, 4)), ENV_INVALID, "other_cores"),
    (case(SLOW, remembered=record(replace(RECORDED, processes=4))), Outcome.NO_BASELINE, "no_record"),
    (case(SLOW, environment_problem="hot"), ENV_INVALID, "machine_unfit"),
    (case(replace(SLOW, reference_slowdown=3.0)), INCONCLUSIVE, "reference_slowed"),
    (case(replace(SLOW, instances=())), INCONCLUSIVE, "nothing_measured"),
    (case(measured(ranks=2.0), case_id="net/fast/cpu"), INCONCLUSIVE, "ranks_share_cores"),
]
TABLES: dict[Check, Table] = {"equivalence": OUTPUTS, "speedup": SPEEDUP, "counters": COUNTERS, "throughput": WALL}


@pytest.mark.parametrize(
    ("check", "found", "outcome", "reason"), [(check, *row) for check, table in TABLES.items() for row in table]
)
def test_the_outcome_and_its_reason(check: Check, found: CaseResult, outcome: Outcome, reason: str) -> None:
    verdict = verdicts(found)[check]
    assert (verdict.outcome, verdict.code.value) == (outcome, reason)


@pytest.mark.parametrize(
    ("spread", "mode", "expected"),
    [
        (0.0, Mode.DEVELOPER, (PASS, "promise_kept")),
        (0.3, Mode.DEVELOPER, (Outcome.UNDECIDED, "interval_too_wide")),
        (0.3, Mode.GATE, (PASS, "promise_kept")),
    ],
)
def test_without_a_record_a_developer_needs_a_narrow_interval(spread: float, mode: Mode, expected: object) -> None:
    verdict = verdicts(case(measured(10.0, spread=spread), remembered=None), mode)["speedup"]
    assert (verdict.outcome, verdict.code.value) == expected


@pytest.mark.parametrize("mode", [Mode.DEVELOPER, Mode.RECORDING])
def test_only_a_gate_needs_a_record(mode: Mode) -> None:
    assert {one.outcome for one in decide(case(SLOW, remembered=None), mode)} == {PASS}


def reasons(found: CaseResult, check: Check) -> list[ReasonCode]:
    return [one.code for one in verdicts(found)[check].reasons]


def test_rules_that_do_not_decide_add_their_reasons() -> None:
    found = case(measured(10.05), recorded_code=code(10.0, machine_changes=("another host",)))
    assert reasons(found, "throughput") == [
        ReasonCode.WALL_AS_RECORDED,
        ReasonCode.CODE_NOT_SLOWER,
        ReasonCode.NO_BILL,
        ReasonCode.RECORD_DIFFERS,
    ]
    on_slow_host = case(SLOW, launch_slowdown=1.5, recorded_code=code(10.0))
    assert reasons(on_slow_host, "throughput") == [
        ReasonCode.THE_MACHINE,
        ReasonCode.SLOW_HOST,
        ReasonCode.SLOWER_THAN_RECORD,
        ReasonCode.CODE_NOT_SLOWER,
        ReasonCode.NO_BILL,
    ]
    several = case(FAST, FAST)
    assert reasons(several, "speedup") == [ReasonCode.PROMISE_KEPT, ReasonCode.FRESH_PROCESS, ReasonCode.PAIRS]
    once = case(with_bill(measured(), kernel_ms=9.0), with_bill(measured()), remembered=billed())
    assert reasons(once, "counters") == [ReasonCode.COUNTED, ReasonCode.ITEM_GREW, ReasonCode.IN_SOME_PROCESSES]
    unfit = case(TOO_SLOW, environment_problem="hot")
    assert reasons(unfit, "speedup")[:2] == [ReasonCode.MACHINE_UNFIT, ReasonCode.SPEEDUP_BELOW_PROMISE]
    assert ReasonCode.NO_BILL not in reasons(case(with_bill(measured()), remembered=billed()), "counters")


@pytest.mark.parametrize(
    ("found", "check", "step"),
    [
        (case(SLOW, recorded_code=code(10.8)), "throughput", NextStep.FIND_COMMIT),
        (case(measured(), remembered=None), "throughput", NextStep.RECORD),
        (case(measured(error=0.5), remembered=None), "throughput", None),  # no baseline may hold a wrong output
        (case(measured(9.0)), "throughput", NextStep.RECORD),
        (case(TOO_SLOW), "speedup", NextStep.MEASURE_LONGER),
        (case(NEAR, case_id="net/fast/cpu"), "speedup", NextStep.MEASURE_LONGER),
        (
            case(replace(NEAR, optimized_counters={**COUNTED, "other_cores": 1.0}), case_id="net/fast/cpu"),
            "speedup",
            NextStep.FREE_CORES,
        ),
        (case(replace(NEAR, stopped_because="noise"), case_id="net/fast/cpu"), "speedup", NextStep.FREE_CORES),
        (case(measured(throttled_periods=0.77), environment_problem="throttled"), "speedup", NextStep.RAISE_QUOTA),
        (case(measured(), environment_problem="hot"), "speedup", NextStep.COOL_MACHINE),
        (case(replace(measured(), reference_slowdown=3.0)), "speedup", NextStep.KEEP_APART),
        (case(measured(10.1, spread=0.02)), "throughput", NextStep.MEASURE_LONGER),
        (case(measured(), launch_slowdown=1.5), "throughput", None),
        (case(SLOW, launch_slowdown=1.5), "throughput", NextStep.COOL_MACHINE),
        (case(SLOW, FAILED), "throughput", NextStep.REPEAT),
        (case(SLOW, remembered=None, cores_changed=CoresChanged(8, 4)), "throughput", NextStep.SAME_CORES),
        (case(GREW, remembered=billed()), "counters", NextStep.REPEAT),
        (case(LAGGING, promise=SOFT), "counters", NextStep.TRACE),
        (case(LATE, promise=SOFT), "counters", NextStep.REPEAT),
        (case(NOT_COUNTED), "counters", NextStep.USE_CUDA),
        (case(replace(measured(), not_engaged="it fell back")), "counters", NextStep.TRACE),
        (case(measured(error=0.5)), "equivalence", NextStep.TRACE_BOTH_SIDES),
        (case(replace(measured(), differences=NAN)), "equivalence", NextStep.REPEAT),
    ],
)
def test_the_next_step_follows_from_the_evidence(found: CaseResult, check: Check, step: NextStep | None) -> None:
    assert verdicts(found)[check].next_step is step


ANY_CASE = [found for table in TABLES.values() for found, _, _ in table]
CHANGES: list[dict[str, object]] = [
    {"environment_problem": "hot"},
    {"launch_slowdown": 1.5},
    {"remembered": None},
    {"remembered": record(replace(RECORDED, processes=3))},
    {"recorded_code": code(None)},
    {"recorded_code": code(10.8)},
]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("changed", CHANGES, ids=str)
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

"""The verdicts about times after the recorded code was measured in turns with this run's, on made-up measurements."""

from dataclasses import replace

import pytest

from gpugate.judging.decide import decide, wants_fresh_process
from gpugate.judging.decide_again import decide_again
from gpugate.judging.machine_state import LAUNCHES
from gpugate.judging.recorded_code import may_need_duet
from gpugate.measurement.record import Measurement
from gpugate.results.case import CaseResult, Confirmation, CoresChanged, Remembered
from gpugate.results.duet import DuetProcess, RecordedCode
from gpugate.results.reason import ReasonCode
from gpugate.results.run import Mode
from gpugate.results.summary import History
from gpugate.results.verdict import NextStep, Outcome
from gpugate.store import run_file
from tests.conftest import TWO_CORES
from tests.engine.judging.test_deciding import (
    BESIDE,
    CASE_ID,
    RECORDED,
    case,
    measured,
    outcomes,
    reasons,
    screened,
    timed,
)
from tests.engine.judging.test_duet import measured as duet_measured
from tools.machines import H100

PASS, REGRESSED, ENV_INVALID, INCONCLUSIVE = (
    Outcome.PASS,
    Outcome.REGRESSED,
    Outcome.ENV_INVALID,
    Outcome.INCONCLUSIVE,
)
COMMIT = "0123456789abcdef"
ALARMED = {"driving-batch/batch-8/cuda", "driving/amp-bf16/cuda", "driving/amp-fp16/cuda"}
BLUNT = History(3.0, 0.03, 30.0, 10.0, 0.03, 5)
SLOW_LAUNCHES = (f"{LAUNCHES} 6.5 us -> 10 us",)
FAST, SLOW = Confirmation(measured(3.0)), Confirmation(measured(2.5))


def code(head_ms: float, spread_ms: float = 0.0, **changes: object) -> RecordedCode:
    """Three processes in which a step of the recorded code took 10 ms."""
    found: Measurement = replace(duet_measured(10.0, head_ms, spread_ms=spread_ms), case_id=CASE_ID)
    swapped: Measurement = replace(duet_measured(head_ms, 10.0, spread_ms=spread_ms), case_id=CASE_ID)
    processes = tuple(
        DuetProcess(one is swapped, TWO_CORES, (CASE_ID,), {CASE_ID: one}) for one in (found, swapped, found)
    )
    return replace(RecordedCode(COMMIT, processes=processes, machine_changes=("another host",)), **changes)  # type: ignore[arg-type]


def with_code(found: CaseResult, compared: RecordedCode) -> CaseResult:
    found.recorded_code = compared
    found.verdicts = decide(found, mode=Mode.GATE, asked_tolerance=None)
    return found


def remembered(then: History, match: str = "exact") -> Remembered:
    return Remembered(then, then, match)  # type: ignore[arg-type]


def step_of(found: CaseResult, check: str) -> NextStep | None:
    return next(verdict.next_step for verdict in found.verdicts if verdict.check == check)


def first_code(found: CaseResult, check: str = "speedup") -> ReasonCode:
    return next(verdict.code for verdict in found.verdicts if verdict.check == check)


def test_a_slower_code_is_a_regression_where_the_record_saw_nothing() -> None:
    blunt = case(measured(3.0), remembered=remembered(BLUNT))
    assert outcomes(blunt)["speedup"] is PASS
    found = with_code(blunt, code(10.5))
    assert (outcomes(found)["speedup"], outcomes(found)["throughput"]) == (REGRESSED, REGRESSED)
    assert (first_code(found), step_of(found, "speedup")) == (ReasonCode.CODE_SLOWER, NextStep.FIND_COMMIT)
    assert reasons(found, "speedup")[ReasonCode.CODE_SLOWER]["change"] == pytest.approx(0.05)
    assert outcomes(found)["counters"] is PASS


@pytest.mark.parametrize(
    ("compared", "match", "expected", "reason"),
    [
        (code(10.0), "exact", ENV_INVALID, ReasonCode.CODE_NOT_SLOWER),
        (code(10.0), "same device", REGRESSED, ReasonCode.CODE_NOT_SLOWER),
        (code(9.5), "exact", ENV_INVALID, ReasonCode.CODE_NOT_SLOWER),
        (code(10.0, unchanged=True, processes=()), "exact", ENV_INVALID, ReasonCode.CODE_UNCHANGED),
        (code(10.0, unchanged=True, processes=()), "same device", REGRESSED, ReasonCode.CODE_UNCHANGED),
        (code(10.5), "exact", REGRESSED, ReasonCode.CODE_SLOWER),
        (code(10.0, spread_ms=2.0), "exact", REGRESSED, ReasonCode.SPEEDUP_BELOW_RECORD),
        (code(10.0, problem="no commit", processes=()), "exact", REGRESSED, ReasonCode.SPEEDUP_BELOW_RECORD),
    ],
)
def test_an_alarm_is_about_the_code_its_software_or_the_machine(
    compared: RecordedCode, match: str, expected: Outcome, reason: ReasonCode
) -> None:
    found = with_code(case(measured(2.5), SLOW, remembered=remembered(RECORDED, match)), compared)
    assert (outcomes(found)["speedup"], first_code(found)) == (expected, reason)


def test_the_verdict_names_the_changes_of_the_machine() -> None:
    found = with_code(case(measured(2.5), SLOW), code(10.0))
    facts = reasons(found, "speedup")[ReasonCode.CODE_NOT_SLOWER]
    assert (facts["commit"], facts["changed"]) == (COMMIT, "another host")
    assert step_of(found, "speedup") is NextStep.RECORD_THIS_MACHINE
    slow = with_code(case(measured(2.5), SLOW), code(10.0, machine_changes=SLOW_LAUNCHES))
    assert reasons(slow, "speedup")[ReasonCode.CODE_NOT_SLOWER]["changed"] == "launch latency 6.5 us -> 10 us"
    assert step_of(slow, "speedup") is NextStep.COOL_MACHINE, "such a host may be slow for a moment only"
    nothing = with_code(case(measured(2.5), SLOW), code(10.0, machine_changes=()))
    assert reasons(nothing, "speedup")[ReasonCode.CODE_NOT_SLOWER]["changed"] == "nothing that a record contains"
    assert step_of(nothing, "speedup") is NextStep.COOL_MACHINE


@pytest.mark.parametrize(
    ("compared", "speedup", "expected"),
    [
        (code(10.0, spread_ms=2.0, machine_changes=SLOW_LAUNCHES), 2.5, INCONCLUSIVE),
        (code(10.0, problem="no commit", processes=(), machine_changes=SLOW_LAUNCHES), 2.5, INCONCLUSIVE),
        (code(10.5, machine_changes=SLOW_LAUNCHES), 2.5, REGRESSED),
        (code(10.0, spread_ms=2.0, machine_changes=SLOW_LAUNCHES), 1.2, REGRESSED),  # 1.5x is promised
    ],
)
def test_where_launches_are_slow_a_record_alone_shows_no_slower_code(
    compared: RecordedCode, speedup: float, expected: Outcome
) -> None:
    found = with_code(case(measured(speedup), Confirmation(measured(speedup))), compared)
    assert (outcomes(found)["speedup"], outcomes(found)["counters"]) == (expected, PASS)
    if expected is INCONCLUSIVE:
        assert reasons(found, "speedup")[ReasonCode.OTHER_CONDITIONS] == {"change": SLOW_LAUNCHES[0]}
        assert (step_of(found, "speedup"), may_need_duet(found, has_ref=False)) == (NextStep.COOL_MACHINE, True)


def test_a_duet_decides_about_an_alarm_that_no_process_confirmed() -> None:
    busy = Confirmation(measured(3.0), "the cores were busy")
    slower = with_code(case(measured(2.5), busy), code(10.5))
    assert (outcomes(slower)["speedup"], first_code(slower)) == (REGRESSED, ReasonCode.CODE_SLOWER)
    same = with_code(case(measured(2.5), busy), code(10.0))
    assert (outcomes(same)["speedup"], first_code(same)) == (ENV_INVALID, ReasonCode.CODE_NOT_SLOWER)
    undecided = with_code(case(measured(2.5), busy), code(10.0, spread_ms=2.0))
    assert (outcomes(undecided)["speedup"], first_code(undecided)) == (INCONCLUSIVE, ReasonCode.NOT_CONFIRMED)


def test_where_launches_are_slow_other_software_is_not_blamed_either() -> None:
    slow_host = code(10.0, machine_changes=SLOW_LAUNCHES)
    found = with_code(case(measured(2.5), SLOW, remembered=remembered(RECORDED, "same device")), slow_host)
    assert (outcomes(found)["speedup"], first_code(found)) == (INCONCLUSIVE, ReasonCode.OTHER_CONDITIONS)


def test_a_stored_gate_on_a_slow_host_has_no_time_that_is_regressed() -> None:
    """The gate measured 16 cases of equal code, whose launches took 1.5 times as long as recorded."""
    gate = run_file.read(H100.results / "slow-host/gate.json")
    assert {case for case, found in gate.cases.items() if REGRESSED in outcomes(found).values()} == ALARMED
    again = decide_again(gate).cases
    assert REGRESSED not in {outcome for found in again.values() for outcome in outcomes(found).values()}
    assert {outcomes(again[name])["speedup"] for name in ALARMED} == {INCONCLUSIVE}
    assert {again[name].autopsy for name in ALARMED} == {gate.cases[name].autopsy for name in ALARMED}
    without_overlap = again["driving/prefetcher/cuda"]
    assert (outcomes(without_overlap)["counters"], wants_fresh_process(without_overlap)) == (Outcome.NOT_ENGAGED, True)


UNCHANGED = RecordedCode(COMMIT, unchanged=True)
NOT_SLOWER = [(code(10.0), ReasonCode.CODE_AS_FAST), (UNCHANGED, ReasonCode.CODE_AS_RECORDED)]


@pytest.mark.parametrize(("compared", "reason"), NOT_SLOWER)
def test_a_check_that_the_record_left_open_passes_where_the_code_is_not_slower(
    compared: RecordedCode, reason: ReasonCode
) -> None:
    undecided = case(measured(2.5), FAST)
    assert outcomes(undecided)["speedup"] is INCONCLUSIVE
    found = with_code(undecided, compared)
    assert (outcomes(found)["speedup"], reason in reasons(found, "speedup")) == (PASS, True)
    disturbed = with_code(screened(BESIDE, BESIDE, BESIDE), compared)
    assert (outcomes(disturbed)["speedup"], first_code(disturbed)) == (PASS, ReasonCode.ALL_DISTURBED)
    other_software = case(measured(2.5), FAST, remembered=remembered(RECORDED, "same device"))
    assert outcomes(with_code(other_software, compared))["speedup"] is INCONCLUSIVE
    open_promise = case(measured(1.4), FAST)
    assert outcomes(with_code(open_promise, compared))["speedup"] is INCONCLUSIVE


def test_code_that_both_sides_share_is_not_laid_to_the_machine_without_a_duet() -> None:
    alike = case(timed(36.0, 12.0))
    assert (outcomes(alike)["speedup"], outcomes(alike)["throughput"]) == (PASS, ENV_INVALID)
    assert first_code(alike, "throughput") is ReasonCode.MACHINE_CHANGED
    assert may_need_duet(alike, has_ref=False)
    slower = with_code(case(timed(36.0, 12.0)), code(12.0))
    assert (outcomes(slower)["throughput"], first_code(slower, "throughput")) == (REGRESSED, ReasonCode.CODE_SLOWER)
    for match in ("exact", "same device"):
        same = with_code(case(timed(66.0, 22.0), remembered=remembered(RECORDED, match)), code(10.0))
        assert outcomes(same)["throughput"] is ENV_INVALID
        assert first_code(same, "throughput") is ReasonCode.CODE_NOT_SLOWER


def test_only_blunt_records_and_alarms_need_a_duet() -> None:
    assert not may_need_duet(case(measured(3.0)), has_ref=True)
    assert may_need_duet(case(measured(2.5), SLOW), has_ref=False)
    assert may_need_duet(case(measured(3.0), remembered=remembered(BLUNT)), has_ref=False)
    assert [may_need_duet(case(measured(3.0), remembered=None), has_ref) for has_ref in (False, True)] == [False, True]
    assert not may_need_duet(case(measured(2.5), SLOW, environment_problem="the GPU is hot"), has_ref=True)
    assert not may_need_duet(case(measured(2.5, error=1.0), SLOW), has_ref=True)


def test_a_broken_promise_without_a_record_stays_one_where_the_code_is_not_slower() -> None:
    found = with_code(case(measured(1.4), remembered=None), code(10.0))
    assert (outcomes(found)["speedup"], first_code(found)) == (REGRESSED, ReasonCode.SPEEDUP_BELOW_PROMISE)
    assert ReasonCode.CODE_AS_FAST in reasons(found, "speedup")


def on_other_cores() -> CaseResult:
    return case(measured(3.0), remembered=None, cores_changed=CoresChanged(recorded=2, now=1))


def test_a_record_of_another_number_of_cores_is_of_another_machine() -> None:
    changed = on_other_cores()
    assert (outcomes(changed)["speedup"], first_code(changed)) == (ENV_INVALID, ReasonCode.OTHER_CORES)
    assert outcomes(changed)["throughput"] is ENV_INVALID
    assert step_of(changed, "speedup") is NextStep.SAME_CORES
    assert outcomes(case(measured(3.0), remembered=None))["speedup"] is Outcome.NO_BASELINE
    assert may_need_duet(changed, has_ref=False)
    slower = with_code(on_other_cores(), code(10.5))
    for check in ("speedup", "throughput"):
        assert (outcomes(slower)[check], first_code(slower, check)) == (REGRESSED, ReasonCode.CODE_SLOWER)


@pytest.mark.parametrize(
    ("compared", "reason"), [*NOT_SLOWER, (RecordedCode("", problem="no commit"), ReasonCode.NO_DUET)]
)
def test_on_other_cores_a_code_that_is_not_known_to_be_slower_is_no_regression(
    compared: RecordedCode, reason: ReasonCode
) -> None:
    found = with_code(on_other_cores(), compared)
    for check in ("speedup", "throughput"):
        assert outcomes(found)[check] is ENV_INVALID
        assert list(reasons(found, check)) == [ReasonCode.OTHER_CORES, reason]

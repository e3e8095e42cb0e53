"""The verdicts about times after the recorded code was measured in turns with this run's, on made-up measurements."""

from dataclasses import replace

import pytest

from gpugate.judging.decide import decide
from gpugate.judging.recorded_code import may_need_duet
from gpugate.measurement.record import Measurement
from gpugate.results.case import CaseResult, Confirmation, CoresChanged, Remembered
from gpugate.results.duet import DuetProcess, RecordedCode
from gpugate.results.reason import ReasonCode
from gpugate.results.summary import History
from gpugate.results.verdict import NextStep, Outcome
from tests.conftest import TWO_CORES
from tests.engine.judging.test_deciding import CASE_ID, RECORDED, case, measured, outcomes
from tests.engine.judging.test_duet import measured as duet_measured

PASS, REGRESSED, ENV_INVALID, INCONCLUSIVE = (
    Outcome.PASS,
    Outcome.REGRESSED,
    Outcome.ENV_INVALID,
    Outcome.INCONCLUSIVE,
)
COMMIT = "0123456789abcdef"
BLUNT = History(3.0, 0.03, 30.0, 10.0, 0.03, 5)
FAST, SLOW = Confirmation(measured(3.0)), Confirmation(measured(2.5))


def code(head_ms: float, spread_ms: float = 0.0, **changes: object) -> RecordedCode:
    """Two processes in which a step of the recorded code took 10 ms."""
    found: Measurement = replace(duet_measured(10.0, head_ms), case_id=CASE_ID)
    swapped: Measurement = replace(duet_measured(head_ms, 10.0, spread_ms=spread_ms), case_id=CASE_ID)
    processes = tuple(
        DuetProcess(number == 1, TWO_CORES, (CASE_ID,), {CASE_ID: one}) for number, one in enumerate((found, swapped))
    )
    return replace(RecordedCode(COMMIT, processes=processes, machine_changes=("another host",)), **changes)  # type: ignore[arg-type]


def with_code(found: CaseResult, compared: RecordedCode) -> CaseResult:
    found.recorded_code = compared
    found.verdicts = decide(found, recording=False, asked_tolerance=None)
    return found


def remembered(then: History, match: str = "exact") -> Remembered:
    return Remembered(then, then, match)  # type: ignore[arg-type]


def first_code(found: CaseResult, check: str = "speedup") -> ReasonCode:
    return next(verdict.code for verdict in found.verdicts if verdict.check == check)


def test_a_slower_code_is_a_regression_where_the_record_saw_nothing() -> None:
    blunt = case(measured(3.0), remembered=remembered(BLUNT))
    assert outcomes(blunt)["speedup"] is PASS
    found = with_code(blunt, code(10.5))
    assert (outcomes(found)["speedup"], outcomes(found)["throughput"]) == (REGRESSED, REGRESSED)
    (speedup,) = (one for one in found.verdicts if one.check == "speedup")
    assert (speedup.code, speedup.next_step) == (ReasonCode.CODE_SLOWER, NextStep.FIND_COMMIT)
    assert speedup.reasons[0].facts["change"] == pytest.approx(0.05)
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
    facts = next(one for one in found.verdicts if one.check == "speedup").reasons[0].facts
    assert (facts["commit"], facts["changed"]) == (COMMIT, "another host")
    nothing = with_code(case(measured(2.5), SLOW), code(10.0, machine_changes=()))
    assert nothing.verdicts[1].reasons[0].facts["changed"] == "nothing that a record contains"


def test_a_check_that_the_record_left_open_passes_where_the_code_is_as_fast() -> None:
    undecided = case(measured(2.5), FAST)
    assert outcomes(undecided)["speedup"] is INCONCLUSIVE
    assert outcomes(with_code(undecided, code(10.0)))["speedup"] is PASS
    other_software = case(measured(2.5), FAST, remembered=remembered(RECORDED, "same device"))
    assert outcomes(with_code(other_software, code(10.0)))["speedup"] is INCONCLUSIVE
    open_promise = case(measured(1.4), FAST)
    assert outcomes(with_code(open_promise, code(10.0)))["speedup"] is INCONCLUSIVE


def test_only_blunt_records_and_alarms_need_a_duet() -> None:
    assert not may_need_duet(case(measured(3.0)))
    assert may_need_duet(case(measured(2.5), SLOW))
    assert may_need_duet(case(measured(3.0), remembered=remembered(BLUNT)))
    assert may_need_duet(case(measured(3.0), remembered=None))
    assert not may_need_duet(case(measured(2.5), SLOW, environment_problem="the GPU is hot"))
    assert not may_need_duet(case(measured(2.5, error=1.0), SLOW))


def test_a_record_of_another_number_of_cores_is_another_machine() -> None:
    changed = case(measured(3.0), remembered=None, cores_changed=CoresChanged(recorded=2, now=1))
    assert (outcomes(changed)["speedup"], first_code(changed)) == (ENV_INVALID, ReasonCode.OTHER_CORES)
    assert outcomes(changed)["throughput"] is ENV_INVALID
    assert next(one for one in changed.verdicts if one.check == "speedup").next_step is NextStep.SAME_CORES
    assert outcomes(case(measured(3.0), remembered=None))["speedup"] is Outcome.NO_BASELINE

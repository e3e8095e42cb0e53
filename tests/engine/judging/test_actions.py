"""The next measurement of a case: a table of what was measured, and what a session allows."""

from dataclasses import replace

import pytest

from gpugate.judging.actions import Action, Allowed, next_action
from gpugate.judging.evidence import gather
from gpugate.results.case import CaseResult, Confirmation
from gpugate.results.duet import RecordedCode
from gpugate.results.run import Mode
from gpugate.statistics.variation import Control, Variation
from gpugate.workload import Size
from tests.support.judged_cases import COUNTED, RECORDED, billed, case, code, measured, record, with_bill

STOP, PAIRS, PROCESS, DUET = Action.STOP, Action.PAIRS, Action.PROCESS, Action.DUET
FINE, SLOW, OPEN = measured(), measured(11.5), measured(10.1, spread=0.03)
TOO_SLOW, CROSSING = measured(23.0), measured(20.0, spread=0.1)  # 1.3x and 1.5x, where 1.5x are promised
GREW, SLOWER_BILL = with_bill(FINE, kernel_ms=9.0), with_bill(SLOW, kernel_ms=9.0)
FAILED = Confirmation(None, "a fresh process gave no result")
BUSY = {"optimized_counters": {**COUNTED, "other_cores": 1.0}}
SLOWED = replace(FINE, reference_slowdown=3.0)
BLUNT = record(replace(RECORDED, control=Control(0.5, Variation(0.03, 4.0))))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (case(FINE), STOP),
        # An open time: pairs, once, where there is no record, else a process.
        (case(CROSSING, remembered=None), PAIRS),
        (case(replace(CROSSING, attempts=2), remembered=None), STOP),
        (case(CROSSING), PROCESS),
        (case(OPEN), PROCESS),
        (case(replace(OPEN, **BUSY), case_id="net/fast/cpu"), STOP),
        (case(replace(OPEN, **BUSY)), PROCESS),  # the load of a CPU does not widen a GPU's interval
        # A process, before an alarm and to settle a contradiction.
        (case(SLOW), PROCESS),
        (case(SLOW, SLOW), STOP),
        (case(SLOW, FINE), PROCESS),
        (case(SLOW, FINE, SLOW), STOP),
        (case(SLOW, FAILED), PROCESS),
        (case(SLOW, FAILED, FAILED), STOP),
        (case(TOO_SLOW), PROCESS),
        (case(TOO_SLOW, remembered=None), PROCESS),
        (case(GREW, remembered=billed()), PROCESS),
        (case(GREW, GREW, remembered=billed()), STOP),
        (case(GREW, with_bill(FINE), remembered=billed()), STOP),  # no further process has it
        (case(SLOWER_BILL, with_bill(SLOW), remembered=billed()), PROCESS),  # two slow processes contradict each other
        (case(SLOWER_BILL, with_bill(SLOW), remembered=billed(), launch_slowdown=1.5), STOP),
        (case(measured(kernels=60.0)), PROCESS),
        (case(SLOWED), PROCESS),
        (case(SLOWED, SLOWED, SLOWED), STOP),
        # No process is spent on wall times of a slow host, and one is on its bill and its promise.
        (case(SLOW, launch_slowdown=1.5), STOP),
        (case(OPEN, launch_slowdown=1.5), STOP),
        (case(GREW, remembered=billed(), launch_slowdown=1.5), PROCESS),
        (case(TOO_SLOW, launch_slowdown=1.5), PROCESS),
        # What no measurement changes, nor a duet, which is asked for later.
        (case(replace(SLOW, not_engaged="it fell back")), STOP),
        (case(measured(11.5, error=0.5)), STOP),
        (case(SLOW, environment_problem="hot"), STOP),
        (case(measured(11.5, ranks=2.0), case_id="net/fast/cpu"), STOP),
        (case(replace(FINE, ceilings={"matmul_bf16_tflops": 800.0}), size=Size(1, 1e13, 0.0)), STOP),
        # A gain needs no confirmation.
        (case(measured(9.0)), STOP),
    ],
)
def test_a_session_without_duets(found: CaseResult, expected: Action) -> None:
    assert next_action(gather(found, Mode.GATE), Allowed()) is expected


DUETS = Allowed(duet=True)


@pytest.mark.parametrize(
    ("found", "allowed", "expected"),
    [
        (case(FINE), DUETS, STOP),
        (case(FINE, remembered=BLUNT), DUETS, STOP),  # its source is the recorded one
        (case(FINE, remembered=BLUNT), Allowed(duet=True, changed=True), DUET),
        (case(SLOW), DUETS, DUET),
        (case(OPEN), DUETS, DUET),
        (case(SLOW, launch_slowdown=1.5), DUETS, DUET),
        (case(TOO_SLOW), DUETS, PROCESS),  # a duet confirms no alarm of the promise or the bill
        (case(TOO_SLOW, TOO_SLOW), DUETS, DUET),
        (case(GREW, remembered=billed()), Allowed(duet=True, changed=True), PROCESS),
        (case(GREW, GREW, remembered=billed()), Allowed(duet=True, changed=True), DUET),
        (case(SLOWED), DUETS, PROCESS),  # its times are no result yet
        (case(SLOWED, SLOW), DUETS, DUET),
        # A duet that decides leaves no question about the wall time.
        (case(SLOW, recorded_code=code(11.5)), DUETS, STOP),
        (case(SLOW, recorded_code=code(10.0)), DUETS, STOP),
        (case(OPEN, recorded_code=code(None)), DUETS, STOP),
        (case(SLOW, recorded_code=RecordedCode("", problem="no commit")), DUETS, PROCESS),
        (case(OPEN, recorded_code=RecordedCode("", problem="no commit")), DUETS, PROCESS),
        (case(FINE, remembered=None), Allowed(duet=True, changed=True), DUET),
        (case(FINE), Allowed(duet=True, changed=True), DUET),  # though its record is sharp
        (case(FINE), Allowed(changed=True), STOP),
        (case(OPEN), Allowed(pairs=False), PROCESS),
        (case(SLOW), Allowed(processes=1), STOP),
        (case(SLOW, FAILED), Allowed(processes=2), STOP),
    ],
)
def test_a_session_with_duets_and_one_that_allows_less(found: CaseResult, allowed: Allowed, expected: Action) -> None:
    assert next_action(gather(found, Mode.GATE), allowed) is expected

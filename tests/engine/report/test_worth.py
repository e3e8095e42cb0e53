"""The worth of a run in sentences: its sharpness and its duets; the golden words have the others."""

from dataclasses import replace

import pytest

from gpugate.measurement.record import Measurement
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult
from gpugate.results.duet import RecordedCode
from gpugate.results.run import RunResult
from gpugate.statistics.variation import Control, Variation
from tests.conftest import TWO_CORES
from tests.support.judged_cases import COMMIT, RECORDED, code, measured, record, verdicts
from tests.support.judged_cases import case as judged_case

GOOD: Measurement = measured()
BLUNT = record(replace(RECORDED, control=Control(0.5, Variation(0.02, 4.0))))


def judged(made: CaseResult) -> CaseResult:
    made.verdicts = list(verdicts(made).values())
    return made


def run_of(*cases: CaseResult) -> RunResult:
    run = RunResult(TWO_CORES, "2026-11-24T01:00:00+00:00", 1)
    run.cases = {str(number): one for number, one in enumerate(cases)}
    return run


def blunt(compared: RecordedCode) -> CaseResult:
    return judged(judged_case(GOOD, remembered=BLUNT, recorded_code=compared))


@pytest.mark.parametrize(
    ("compared", "sharp", "words"),
    [
        ([code(10.0), code(10.5)], 2, "2 cases in turns (1 SAME, 1 SLOWER)"),
        ([RecordedCode(COMMIT, unchanged=True), code(10.0)], 1, "1 case in turns (1 SAME), 1 unchanged"),
        ([RecordedCode("", problem="no commit\nin two lines")], 0, "1 not compared (no commit)"),
        ([RecordedCode("", problem="a"), RecordedCode("", problem="b")], 0, "2 not compared (such as: a)"),
    ],
)
def test_a_duet_makes_a_blunt_case_sharp(compared: list[RecordedCode], sharp: int, words: str) -> None:
    sharpness, codes = RunView(run_of(*map(blunt, compared))).worth
    assert sharpness.startswith(f"sharpness: {sharp} of {len(compared)} case")
    assert codes == f"recorded code: {words}"


@pytest.mark.parametrize(
    ("made", "is_open"),
    [
        (judged_case(GOOD), False),
        (judged_case(measured(11.5)), False),  # REGRESSED
        (judged_case(measured(11.5), launch_slowdown=1.5), True),
        (judged_case(GOOD, remembered=BLUNT), False),
        (judged_case(GOOD, remembered=BLUNT, recorded_code=code(10.0, spread=0.3)), True),
        (judged_case(GOOD, recorded_code=code(10.0, spread=0.3)), False),  # its record is sharp
        (judged_case(measured(11.5), remembered=None), False),  # NO_BASELINE
    ],
)
def test_a_time_that_neither_the_record_nor_a_duet_decided_is_not_gated_tonight(
    made: CaseResult, is_open: bool
) -> None:
    run = run_of(judged(made))
    assert "not gated tonight" not in RunView(run).tally
    run.gate = True
    assert ("1 case not gated tonight" in RunView(run).tally) is is_open

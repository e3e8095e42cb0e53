"""The worth of a run: its sharpness, its duets with the recorded code, and the dates of remembered proofs."""

from dataclasses import replace

import pytest

from gpugate.measurement.record import Measurement, ProofResult
from gpugate.report.view import RunView, tally
from gpugate.results.case import CaseResult
from gpugate.results.duet import RecordedCode
from gpugate.results.run import RunResult
from gpugate.statistics.variation import Control, Variation
from tests.conftest import TWO_CORES
from tests.support.judged_cases import COMMIT, RECORDED, case, code, measured, record, verdicts

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
    return judged(case(GOOD, remembered=BLUNT, recorded_code=compared))


def test_a_sharp_and_a_blunt_record() -> None:
    (words,) = RunView(run_of(judged(case(GOOD)), judged(case(GOOD, remembered=BLUNT)))).worth
    assert words == (
        "sharpness: 1 of 2 cases would catch a slowdown of 5 % by the wall time or a duet (median detectable 8 %)"
    )


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
        (case(GOOD), False),
        (case(measured(11.5)), False),  # REGRESSED
        (case(measured(11.5), launch_slowdown=1.5), True),
        (case(GOOD, remembered=BLUNT), False),
        (case(GOOD, remembered=BLUNT, recorded_code=code(10.0, spread=0.3)), True),
        (case(GOOD, recorded_code=code(10.0, spread=0.3)), False),  # its record is sharp
        (case(measured(11.5), remembered=None), False),  # NO_BASELINE
    ],
)
def test_a_time_that_neither_the_record_nor_a_duet_decided_is_not_gated_tonight(
    made: CaseResult, is_open: bool
) -> None:
    run = run_of(judged(made))
    assert "not gated tonight" not in tally(run)
    run.gate = True
    assert ("1 case not gated tonight" in tally(run)) is is_open


def test_a_run_without_records_is_worth_nothing() -> None:
    assert RunView(run_of(case(GOOD, remembered=None))).worth == []


def proven(*dates: str | None) -> CaseResult:
    times = [None if date is None else f"{date}T02:00:05+01:00" for date in dates]
    proofs = tuple(ProofResult("it learns", "98 %", proved_at=time) for time in times)
    return judged(case(replace(GOOD, proofs=proofs), remembered=None))


def test_remembered_proofs_are_counted_by_date() -> None:
    run = run_of(proven("2026-11-22", None), proven("2026-11-20", "2026-11-22"), proven())
    assert RunView(run).worth == ["proofs: 1 proved on 2026-11-20, 2 proved on 2026-11-22, 1 in this run"]
    assert RunView(run_of(proven("2026-11-20"))).worth == ["proofs: 1 proved on 2026-11-20"]
    assert RunView(run_of(proven(None))).worth == []

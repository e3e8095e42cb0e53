"""The worth of a run in sentences: gains, bounds and cost, its sharpness, its duets, and remembered proofs."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.measurement.record import Measurement
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult, Confirmation
from gpugate.results.duet import RecordedCode
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.verdict import NextStep, Outcome, Verdict
from gpugate.statistics.variation import Control, Variation
from gpugate.workload import Point
from tests.conftest import TWO_CORES
from tests.support.judged_cases import COMMIT, RECORDED, code, measured, record, verdicts
from tests.support.judged_cases import case as judged_case
from tests.support.stored_runs import case, stored

OPEN = (Reason(ReasonCode.PROMISE_OPEN, {"promise": 1.5}),)


def timed(run: RunResult) -> list[CaseResult]:
    return [case for case in run.cases.values() if case.summary is not None]


def judge(case: CaseResult, outcome: Outcome, step: NextStep | None = None) -> None:
    case.verdicts = [Verdict("speedup", case.case_id, outcome, OPEN, step)]


def test_undecided_cases_are_counted_with_the_command_that_measures_longer(gpu_run: RunResult) -> None:
    first, second, *_ = timed(gpu_run)
    judge(first, Outcome.UNDECIDED, NextStep.MEASURE_LONGER)
    (words,) = RunView(gpu_run).gains
    command = f'pytest perf_tests -k "{first.case_id}" --perf-budget 30'
    assert words.endswith(
        f"; 1 is UNDECIDED: its interval is on both sides of the promise, and `{command}` measures longer"
    )
    judge(second, Outcome.UNDECIDED, NextStep.FREE_CORES)  # where a longer measurement does not help
    (words,) = RunView(gpu_run).gains
    assert words.endswith("; 2 are UNDECIDED: their intervals are on both sides of the promise")


def test_what_an_author_says_of_several_cases_is_told_once_and_of_a_rung_below_its_ladder(tmp_path: Path) -> None:
    why = "a stage waits for a buffer"
    run = stored(
        tmp_path / "run.json",
        case("buffers-1", why=why, point=Point("buffers", 1)),
        case("pipelined", why="five stages at once"),
        case("buffers-2", why=why, point=Point("buffers", 2)),
        case("rung", why="because", rung=1),
        case("skipped", None, why="never shown", skipped="no GPU"),
        case("silent"),
    )
    assert RunView(run).reasons == [f"tiny/buffers-1, buffers-2: {why}", "tiny/pipelined: five stages at once"]


def cases_of(run: RunResult, *durations_s: float) -> list[CaseResult]:
    """Copies of a measured case, as CUDA events time it, one for each duration."""
    case = next(case for case in run.cases.values() if case.measurement is not None)
    assert case.measurement is not None
    timed = [replace(case.measurement, wall_s=seconds, timer="cuda events") for seconds in durations_s]
    return [replace(case, case_id=f"net/fast-{number}/cuda", measurement=one) for number, one in enumerate(timed)]


@pytest.fixture
def night(gpu_run: RunResult) -> RunResult:
    """Four cases of one minute, of which one needed a confirmation, and one of two minutes that needs the host."""
    *others, fed = cases_of(gpu_run, 60.0, 60.0, 60.0, 60.0, 120.0)
    assert fed.measurement is not None
    fed = replace(fed, measurement=replace(fed.measurement, timer="host clock"))
    others[1].attempts = [Confirmation(others[1].measurement), Confirmation(None, "a fresh process gave no result")]
    return replace(gpu_run, cases={case.case_id: case for case in (*others, fed)}, gate=True)


def test_the_cost_counts_all_processes_and_each_gpu_of_a_case(night: RunResult) -> None:
    assert RunView(night).cost == ["cost: 7.0 GPU-minutes, 14 % of them for confirmations"]
    first = next(iter(night.cases.values()))
    assert first.measurement is not None
    counters = {**first.measurement.optimized_counters, "ranks": 4.0}
    spans = replace(first, measurement=replace(first.measurement, optimized_counters=counters))
    (line,) = RunView(replace(night, cases={**night.cases, first.case_id: spans})).cost
    assert line == "cost: 10.0 GPU-minutes, 10 % of them for confirmations"


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

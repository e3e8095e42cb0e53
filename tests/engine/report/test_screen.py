"""A whole run on one screen and in its details, on made-up sessions; the golden words have the sentences."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.measurement.record import Measurement
from gpugate.report.pages.night import night_page
from gpugate.report.screen import screen
from gpugate.report.terminal import LOG_COLUMNS, render_text
from gpugate.report.view import RunView
from gpugate.results.autopsy import Autopsy
from gpugate.results.case import CaseResult
from gpugate.results.changes import SOURCE_CHANGED
from gpugate.results.duet import RecordedCode
from gpugate.results.run import RunResult
from gpugate.statistics.variation import Control, Variation
from gpugate.units import number_of
from tests.conftest import TWO_CORES
from tests.support import stored_runs
from tests.support.judged_cases import COMMIT, RECORDED, code, measured, record, verdicts
from tests.support.judged_cases import case as judged_case
from tests.support.read_pages import Page

LINES = 60 - 12  # of a screen, without the lines of pytest itself


def test_the_suite_of_a_cpu_is_one_screen(cpu_run: RunResult) -> None:
    measured = next(case for case in cpu_run.cases.values() if case.summary is not None)
    skipped = replace(measured, measurement=None, summary=None, verdicts=[], skipped="needs a CUDA GPU")
    cases = {f"w-{n}/fast/cpu": replace(measured, case_id=f"w-{n}/fast/cpu", workload=f"w-{n}") for n in range(22)}
    cases |= {f"w-{n}/fast/cuda": replace(skipped, case_id=f"w-{n}/fast/cuda", workload=f"w-{n}") for n in range(96)}
    shown = render_text(screen(RunView(replace(cpu_run, cases=cases)), 100), 100, colour=False)
    assert len(shown.splitlines()) <= LINES
    assert "not measured\n  96 cases: needs a CUDA GPU\n" in shown


def test_an_accepted_absence_needs_no_attention(tmp_path: Path) -> None:
    """The golden words of a run with every outcome have one that is not accepted."""
    cases = stored_runs.case("pass"), stored_runs.case("missing", None, skipped="needs a GPU", lacking=("cuda",))
    run = stored_runs.stored(tmp_path / "run.json", *cases, gate=True, accepted=("cuda",), exit_status=0)
    shown = render_text(screen(RunView(run), 100), 100, colour=False)
    assert "not measured\n  1 case: needs a GPU\n" in shown
    assert "the gate is green: 1 case measured (1 PASS), 1 case skipped" in shown
    page = Page(night_page(RunView(run), "no earlier night")).text
    assert "Not measured tiny/missing/cuda: needs a GPU" in page
    assert "--allow-missing" not in page
    assert "Every verdict is PASS." in page


def test_one_optimization_that_gains_is_not_the_most_of_all() -> None:
    cases = {name: stored_runs.case(name, speedup) for name, speedup in (("a", 3.0), ("b", 1.0))}
    run = RunResult(stored_runs.MACHINE, stored_runs.STARTED, 0, cases=cases)
    assert RunView(run).gains == ["gains: 1 of 2 optimizations, tiny/a, 3.00x"]


def test_a_run_with_a_fault_advises_no_recording(tmp_path: Path) -> None:
    new = stored_runs.case("new", remembered=None)
    assert RunView(stored_runs.stored(tmp_path / "run.json", new, mutated="stale")).next_command == []


# --- the details ------------------------------------------------------------------------------------------------------

WIDTHS = [50, 80, LOG_COLUMNS]


def detailed(run: RunResult, width: int, colour: bool) -> str:
    return render_text(screen(RunView(run), width, detailed=True), width, colour)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_but_a_command_is_wider_than_the_window(gpu_run: RunResult, cpu_run: RunResult, width: int) -> None:
    lines = [line for run in (gpu_run, cpu_run) for line in detailed(run, width, False).splitlines()]
    assert all(len(line) <= width for line in lines if not line.startswith("    next: "))
    assert sum(line.endswith(' --update-baselines="..."') for line in lines) == 2  # and each command is whole


def test_colour_changes_no_word(gpu_run: RunResult) -> None:
    plain, coloured = detailed(gpu_run, 120, False), detailed(gpu_run, 120, True)
    assert "\x1b[" not in plain
    assert "\x1b[1;31mREGRESSED" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()


# --- the worth of its verdicts: sharpness and duets -------------------------------------------------------------------

GOOD: Measurement = measured()
BLUNT = record(replace(RECORDED, control=Control(0.5, Variation(0.02, 4.0))))
BLUNT_AND_CHANGED = replace(BLUNT, differences=(SOURCE_CHANGED,))


def judged(made: CaseResult) -> CaseResult:
    made.verdicts = list(verdicts(made).values())
    return made


def run_of(*cases: CaseResult) -> RunResult:
    run = RunResult(TWO_CORES, "2026-11-24T01:00:00+00:00", 1)
    run.cases = {str(number): one for number, one in enumerate(cases)}
    return run


@pytest.mark.parametrize(
    ("compared", "missed", "words"),
    [
        ([code(10.0), code(10.5)], 0, "2 cases in turns (1 SAME, 1 SLOWER)"),
        ([RecordedCode(COMMIT, unchanged=True), code(10.0)], 1, "1 case in turns (1 SAME), 1 case unchanged"),
        ([RecordedCode("", problem="no commit\nin two lines")], 1, "1 case not compared (no commit)"),
        ([RecordedCode("", problem="a"), RecordedCode("", problem="b")], 2, "2 cases not compared (such as: a)"),
    ],
)
def test_a_duet_makes_a_blunt_case_sharp(compared: list[RecordedCode], missed: int, words: str) -> None:
    cases = [judged(judged_case(GOOD, remembered=BLUNT, recorded_code=one)) for one in compared]
    sharpness, bill, codes = RunView(run_of(*cases)).worth
    of_all = f"in {missed} of {len(compared)} cases"
    assert sharpness.startswith(f"sharpness: wall times, bills and duets would miss a slowdown of 5 % {of_all} (")
    assert bill == f"bill: counts alone were compared in {number_of(len(compared), 'case')}"
    assert codes == f"recorded code: {words}"


@pytest.mark.parametrize(("kind", "shown"), [("wrong output", False), ("stale output", True)])
def test_an_autopsy_that_repeats_the_reason_is_not_shown(tmp_path: Path, kind: str, shown: bool) -> None:
    explained = stored_runs.case("pass", autopsy=Autopsy("baseline", kind, "the error exceeds", ()))
    view = RunView(stored_runs.stored(tmp_path / "run.json", explained))
    assert ("tiny/pass/cuda" in view.autopsies) is shown


def test_the_last_lines_name_the_reason_of_a_record() -> None:
    first, accepted = (
        replace(BLUNT, recorded_at=f"2026-11-{day}T01:00:00+00:00", reason=reason)
        for day, reason in ((24, "first night"), (29, "exact sums"))
    )
    cases = [judged(judged_case(GOOD, remembered=one)) for one in (first, first, accepted)]
    cases[2].case_id = "net/exact/cpu"
    records, *_ = RunView(run_of(*cases)).worth
    assert records == "records: net/exact/cpu of 2026-11-29 (exact sums), 2 cases of 2026-11-24 (first night)"


@pytest.mark.parametrize(
    ("made", "is_open"),
    [
        (judged_case(GOOD), False),
        (judged_case(measured(11.5)), False),  # REGRESSED
        (judged_case(measured(11.5), launch_slowdown=1.5), True),
        (judged_case(GOOD, remembered=BLUNT), False),  # nothing changed
        (judged_case(GOOD, remembered=BLUNT_AND_CHANGED), True),  # with --against off, nothing shows 5 %
        (judged_case(measured(error=1.0), remembered=BLUNT_AND_CHANGED), False),  # WRONG
        (judged_case(GOOD, remembered=BLUNT_AND_CHANGED, recorded_code=code(10.0)), False),
        (judged_case(GOOD, remembered=BLUNT_AND_CHANGED, recorded_code=code(10.0, spread=0.3)), True),
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

"""The words of the summary and their fit to the terminal, on made-up sessions."""

import re
from dataclasses import replace

import pytest

from gpugate.measurement.record import Pair, TimedBuild
from gpugate.report.screen import details
from gpugate.report.tables import Row, rows
from gpugate.report.terminal import LOG_COLUMNS, render_text
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from gpugate.results.summary import summarize
from gpugate.results.verdict import Outcome
from tests.support.stored_runs import RECORDED
from tools.run_page import results_page

WIDTHS = [50, 80, LOG_COLUMNS]


def text(run: RunResult, width: int, colour: bool) -> str:
    return render_text(details(RunView(run), width), width, colour)


def row_of(summary: str, optimization: str) -> list[str]:
    """The cells of one row, which are two blanks or more apart."""
    line = next(line for line in summary.splitlines() if line.startswith(f"{optimization} "))
    return re.split(r" {2,}", line.strip())


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_window(gpu_run: RunResult, cpu_run: RunResult, width: int) -> None:
    assert all(len(line) <= width for run in (gpu_run, cpu_run) for line in text(run, width, False).splitlines())


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ({"speedup": Outcome.REGRESSED, "throughput": Outcome.REGRESSED}, "REGRESSED speedup, throughput"),
        ({"speedup": Outcome.REGRESSED, "equivalence": Outcome.WRONG}, "WRONG equivalence"),
        ({"speedup": Outcome.NO_BASELINE, "throughput": Outcome.NO_BASELINE}, "NO_BASELINE"),
        ({}, "PASS"),
    ],
)
def test_the_verdict_of_a_row_names_its_checks(gpu_run: RunResult, outcomes: dict[str, Outcome], words: str) -> None:
    case = gpu_run.cases["resnet50-inference/cudnn-fused/cuda"]
    case.verdicts = [replace(one, outcome=outcomes.get(one.check, Outcome.PASS)) for one in case.verdicts]
    assert words in row_of(text(gpu_run, 200, False), "cudnn-fused")
    assert f"| {words} |" in results_page(RunView(gpu_run))


def of_pairs(run: RunResult, *times: tuple[float, float]) -> CaseResult:
    """The case cudnn-fused, measured by these pairs of a reference and an optimized time, over and over."""
    case = run.cases["resnet50-inference/cudnn-fused/cuda"]
    assert case.measurement is not None
    pairs = tuple(Pair(*both, True) for both in times) * 9
    case.measurement = replace(case.measurement, instances=(TimedBuild(True, pairs),) * 3)
    case.summary = summarize(case.measurement)
    return case


def overview(run: RunResult) -> tuple[tuple[str, ...], ...]:
    return RunView(run).overview.rows


def cells(row: Row, *names: str) -> list[str]:
    return [row.cells[name] for name in names]


def test_a_row_whose_times_do_not_give_its_speedup_has_the_optimized_time_alone(gpu_run: RunResult) -> None:
    # The medians of the sides are 3.16 and 0.313 ms, and two of three pairs are far from their ratio.
    of_pairs(gpu_run, (3.16, 1.785), (0.5, 0.282), (3.16, 0.313), (3.16, 0.30), (0.554, 0.313))
    (row,) = (row for row in rows(gpu_run) if row.case.optimization == "cudnn-fused")
    assert cells(row, "reference", "optimized", "speedup") == ["", "0.313 ms", "1.77x"]
    assert ["/cudnn-fused", "0.313 ms", "1.77x"] in [[cell.strip() for cell in one[:3]] for one in overview(gpu_run)]


def test_the_share_of_the_nearer_ceiling_is_printed_where_it_is_known(gpu_run: RunResult) -> None:
    assert "ceiling" not in text(gpu_run, 200, False)
    case = gpu_run.cases["resnet50-inference/cudnn-fused/cuda"]
    assert case.measurement is not None
    assert case.summary is not None
    ceilings = {"device_copy_gb_per_s": 4300.0, "matmul_bf16_tflops": 788.0}
    half = 0.5 * 4.3e12 * case.summary.optimized_ms.median / 1e3
    case.measurement, case.size = replace(case.measurement, ceilings=ceilings), replace(case.size, bytes=half)
    assert "50 % copy" in row_of(text(gpu_run, 200, False), "cudnn-fused")


def test_colour_changes_no_word(gpu_run: RunResult) -> None:
    plain, coloured = text(gpu_run, 120, False), text(gpu_run, 120, True)
    assert "\x1b[" not in plain
    assert "\x1b[1;31mREGRESSED" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()


@pytest.mark.parametrize(("numbers", "cell"), [({"detectable_by_time": 0.0621}, "6.2 %"), ({}, "none")])
def test_a_recorded_case_says_how_small_a_slowdown_is_caught(gpu_run: RunResult, numbers, cell: str) -> None:
    case_id, case = next((name, case) for name, case in gpu_run.cases.items() if case.summary)
    case.verdicts[1], case.remembered = replace(case.verdicts[1], numbers=numbers), RECORDED
    row = next(row for row in rows(gpu_run) if row.case.case_id == case_id)
    assert cells(row, "detectable") == [cell]
    notes = [column.note for column in RunView(gpu_run).results.columns if column.heading == "MDE"]
    assert ["only a promise is a sure bound" in note for note in notes] == ([cell == "none"] if cell else [])

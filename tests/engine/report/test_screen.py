"""A whole run on one screen and in its details, on made-up sessions; the golden words have the sentences."""

import re
from dataclasses import replace

import pytest

from gpugate.measurement.record import OTHERS, Pair, StepProfile, TimedBuild
from gpugate.report.next_step import describe_next_step
from gpugate.report.screen import details, screen
from gpugate.report.tables import Row, bill_table, rows
from gpugate.report.terminal import LOG_COLUMNS, render_text
from gpugate.report.view import RunView
from gpugate.results.bill import Bill, Bills
from gpugate.results.case import CaseResult
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.summary import summarize
from gpugate.results.verdict import NextStep, Outcome, Verdict
from tests.support import stored_runs
from tests.support.stored_runs import RECORDED

NOT_YET = (Reason(ReasonCode.NO_RECORD, {"purpose": "developer"}),)
OPEN = (Reason(ReasonCode.PROMISE_OPEN, {"promise": 1.5}),)
LINES = 60 - 12  # of a screen, without the lines of pytest itself


def text(run: RunResult, width: int = 100) -> str:
    return render_text(screen(RunView(run), width), width, colour=False)


def paragraph(run: RunResult, title: str, width: int = 100) -> list[str]:
    return text(run, width).partition(f"\n{title}\n")[2].partition("\n\n")[0].splitlines()


def test_the_suite_of_a_cpu_is_one_screen(cpu_run: RunResult) -> None:
    measured = next(case for case in cpu_run.cases.values() if case.summary is not None)
    skipped = replace(measured, measurement=None, summary=None, verdicts=[], skipped="needs a CUDA GPU")
    cases = {f"w-{n}/fast/cpu": replace(measured, case_id=f"w-{n}/fast/cpu", workload=f"w-{n}") for n in range(22)}
    cases |= {f"w-{n}/fast/cuda": replace(skipped, case_id=f"w-{n}/fast/cuda", workload=f"w-{n}") for n in range(96)}
    shown = text(replace(cpu_run, cases=cases))
    assert len(shown.splitlines()) <= LINES
    assert "not measured\n  96 cases: needs a CUDA GPU\n" in shown


def with_verdicts(run: RunResult, **outcomes: Outcome) -> list[CaseResult]:
    cases = [case for case in run.cases.values() if case.summary is not None]
    for case in cases:
        case.verdicts = [
            Verdict(check, case.case_id, outcome, NOT_YET)  # type: ignore[arg-type]
            for check, outcome in outcomes.items()
        ]
    return cases


def test_one_reason_of_many_cases_needs_attention_once(gpu_run: RunResult) -> None:
    cases = with_verdicts(gpu_run, speedup=Outcome.NO_BASELINE, throughput=Outcome.NO_BASELINE, counters=Outcome.PASS)
    (found,) = RunView(gpu_run).attention
    assert found.checks == "speedup, throughput"
    assert found.case_ids == tuple(case.case_id for case in cases)
    head = next(line for line in paragraph(gpu_run, "needs attention", 200) if line.startswith("  NO_BASELINE"))
    assert head.startswith("  NO_BASELINE  speedup, throughput of ")
    assert head.endswith(f" and {len(cases) - 3} more")


def test_the_worst_comes_first_and_the_rest_is_counted(gpu_run: RunResult) -> None:
    for number, case in enumerate(gpu_run.cases.values()):
        outcome = Outcome.WRONG if number == 4 else Outcome.INCONCLUSIVE
        case.error, case.skipped = None, None
        case.verdicts = [Verdict("counters", case.case_id, outcome, (Reason(ReasonCode.WORK_NOT_SEEN),))]
        if number != 4:
            case.verdicts[0] = replace(case.verdicts[0], reasons=(Reason(ReasonCode.NOT_ENGAGED, {"problem": "p"}),))
    assert RunView(gpu_run).attention[0].outcome is Outcome.WRONG
    errors = {f"e-{n}/x/cuda": CaseResult(f"e-{n}/x/cuda", f"e-{n}", "x", "baseline", case.size) for n in range(7)}
    for one in errors.values():
        one.error = "broken"
    gpu_run.cases |= errors
    shown = paragraph(gpu_run, "needs attention")
    assert shown[0] == "  FAILED  e-0/x/cuda"
    assert shown[-1] == "  and 2 more: -v lists all"


def test_the_next_command_records_what_is_not_recorded(gpu_run: RunResult) -> None:
    cases = with_verdicts(gpu_run, speedup=Outcome.PASS)
    count = f"({len(cases)} cases pass and are not recorded yet)"
    (command,) = RunView(gpu_run).next_command
    assert command.endswith(f'--update-baselines="..." {count}')
    assert RunView(replace(gpu_run, mutated="stale")).next_command == []
    cases[0].verdicts.append(Verdict("counters", cases[0].case_id, Outcome.INCONCLUSIVE))
    assert f"({len(cases) - 1} case" in RunView(gpu_run).next_command[0]
    for case in cases:
        case.verdicts = [Verdict("speedup", case.case_id, Outcome.PASS, (Reason(ReasonCode.COUNTED),))]
    assert RunView(gpu_run).next_command == []


def test_an_undecided_case_is_no_bad_one(gpu_run: RunResult) -> None:
    (first, *_) = with_verdicts(gpu_run, speedup=Outcome.PASS)
    first.verdicts = [Verdict("speedup", first.case_id, Outcome.UNDECIDED, OPEN, NextStep.MEASURE_LONGER)]
    run = replace(gpu_run, cases={one.case_id: one for one in gpu_run.cases.values() if one.error is None})
    assert RunView(run).headline.endswith(", none bad, 1 UNDECIDED")
    assert "\x1b[2mUNDECIDED" in render_text(screen(RunView(run), 100), 100, colour=True)


@pytest.mark.parametrize(
    ("other_cores", "step"), [(0.0, "compare Size.flops and Size.bytes"), (1.2, "end the other work on this machine")]
)
def test_beside_other_work_an_impossible_rate_blames_the_work_first(other_cores: float, step: str) -> None:
    busy = stored_runs.measured("tiny/fused/cpu", 3.0, optimized_counters={"other_cores": other_cores})
    one = stored_runs.case("fused", kind="cpu", measurement=busy)
    verdict = Verdict("speedup", one.case_id, Outcome.INCONCLUSIVE, next_step=NextStep.CHECK_SIZE)
    run = RunResult(stored_runs.MACHINE, stored_runs.STARTED, seed=0, cases={one.case_id: one})
    assert describe_next_step(verdict, run).startswith(step)


# --- the details ------------------------------------------------------------------------------------------------------

WIDTHS = [50, 80, LOG_COLUMNS]


def detailed(run: RunResult, width: int, colour: bool) -> str:
    return render_text(details(RunView(run), width), width, colour)


def row_of(summary: str, optimization: str) -> list[str]:
    """The cells of one row, which are two blanks or more apart."""
    line = next(line for line in summary.splitlines() if line.startswith(f"{optimization} "))
    return re.split(r" {2,}", line.strip())


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_window(gpu_run: RunResult, cpu_run: RunResult, width: int) -> None:
    assert all(len(line) <= width for run in (gpu_run, cpu_run) for line in detailed(run, width, False).splitlines())


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
    assert "ceiling" not in detailed(gpu_run, 200, False)
    case = gpu_run.cases["resnet50-inference/cudnn-fused/cuda"]
    assert case.measurement is not None
    assert case.summary is not None
    ceilings = {"device_copy_gb_per_s": 4300.0, "matmul_bf16_tflops": 788.0}
    half = 0.5 * 4.3e12 * case.summary.optimized_ms.median / 1e3
    case.measurement, case.size = replace(case.measurement, ceilings=ceilings), replace(case.size, bytes=half)
    assert "50 % copy" in row_of(detailed(gpu_run, 200, False), "cudnn-fused")


def test_colour_changes_no_word(gpu_run: RunResult) -> None:
    plain, coloured = detailed(gpu_run, 120, False), detailed(gpu_run, 120, True)
    assert "\x1b[" not in plain
    assert "\x1b[1;31mREGRESSED" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()


def test_the_slowest_kernels_stand_before_and_after_in_the_bill() -> None:
    """A kernel that is gone is as slow as it was; the rest of all others is no kernel."""
    kernels = {"gemm": 1.0, "copy": 0.1, "relu": 0.2, OTHERS: 9.0}
    profile = StepProfile(kernels={name: (1.0, ms) for name, ms in kernels.items()})
    found = stored_runs.measured("tiny/a/cuda", 3.0, optimized_profile=profile, optimized_counters={"kernel_ms": 1.25})
    bills = (Bills(Bill({}, {}), Bill({}, {"gemm": 0.5, "old": 0.75, "tiny": 0.01})),) * 2
    record = replace(RECORDED, current=replace(RECORDED.current, bills=bills))
    case = stored_runs.case("a", measurement=found, remembered=record)
    table = bill_table(RunResult(stored_runs.MACHINE, stored_runs.STARTED, seed=7, cases={case.case_id: case}))
    assert table.rows[-3:] == (
        ("tiny/a/cuda", "gemm", "", "1.00 ms", "0.500 ms"),
        ("tiny/a/cuda", "old", "", "", "0.750 ms"),
        ("tiny/a/cuda", "relu", "", "0.200 ms", ""),
    )

"""A whole run on one screen, on made-up sessions."""

from dataclasses import replace

import pytest

from gpugate.report.next_step import describe_next_step
from gpugate.report.screen import screen
from gpugate.report.terminal import render_text
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.verdict import NextStep, Outcome, Verdict
from tests.support import stored_runs

NOT_YET = (Reason(ReasonCode.NO_RECORD, {"purpose": "developer"}),)
TOO_WIDE = (Reason(ReasonCode.INTERVAL_TOO_WIDE, {"half_width": 0.4, "widest": 0.15}),)
LINES = 60 - 12  # of a screen, without the lines of pytest itself


def text(run: RunResult, width: int = 100) -> str:
    return render_text(screen(RunView(run), width), width, colour=False)


def paragraph(run: RunResult, title: str, width: int = 100) -> list[str]:
    return text(run, width).partition(f"\n{title}\n")[2].partition("\n\n")[0].splitlines()


def many(run: RunResult, workloads: int) -> RunResult:
    """The cases of the run under many workloads, with a pass and a verdict of every other outcome."""
    cases = {}
    for number in range(workloads):
        for case in run.cases.values():
            workload = f"workload-{number}-{case.workload}"
            case_id = f"{workload}/{case.optimization}/{case.device_kind}"
            cases[case_id] = replace(case, case_id=case_id, workload=workload)
    return replace(run, cases=cases)


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
    run = many(gpu_run, 1)
    for number, case in enumerate(run.cases.values()):
        outcome = Outcome.WRONG if number == 4 else Outcome.INCONCLUSIVE
        case.error, case.skipped = None, None
        case.verdicts = [Verdict("counters", case.case_id, outcome, (Reason(ReasonCode.WORK_NOT_SEEN),))]
        if number != 4:
            case.verdicts[0] = replace(case.verdicts[0], reasons=(Reason(ReasonCode.NOT_ENGAGED, {"problem": "p"}),))
    assert RunView(run).attention[0].outcome is Outcome.WRONG
    errors = {f"e-{n}/x/cuda": CaseResult(f"e-{n}/x/cuda", f"e-{n}", "x", "baseline", case.size) for n in range(7)}
    for one in errors.values():
        one.error = "broken"
    run.cases |= errors
    shown = paragraph(run, "needs attention")
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
    first.verdicts = [Verdict("speedup", first.case_id, Outcome.UNDECIDED, TOO_WIDE, NextStep.MEASURE_LONGER)]
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

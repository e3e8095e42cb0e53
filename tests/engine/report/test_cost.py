"""The cost of a night: the time of each case in all its processes, and the night on other numbers of GPUs."""

from dataclasses import replace

import pytest

from gpugate.report.markdown import night_summary
from gpugate.report.screen import details
from gpugate.report.terminal import render_text
from gpugate.report.view import RunView
from gpugate.report.worth import LONGEST, describe_cost, list_longest
from gpugate.results.case import CaseResult, Confirmation
from gpugate.results.run import RunResult

LINE = (
    "cost: 7.0 GPU-minutes, 14 % of them for confirmations; planned on 1, 2, 4, 8 GPUs of a host: 7 min, 5 min, 4 min, "
    "4 min"
)


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


def test_the_cost_counts_all_processes_and_cases_that_need_the_host_alone(night: RunResult) -> None:
    assert describe_cost(night) == [LINE]


def test_a_case_that_spans_gpus_costs_each_of_them_and_runs_alone(night: RunResult) -> None:
    first = next(iter(night.cases.values()))
    assert first.measurement is not None
    counters = {**first.measurement.optimized_counters, "ranks": 4.0}
    spans = replace(first, measurement=replace(first.measurement, optimized_counters=counters))
    (line,) = describe_cost(replace(night, cases={**night.cases, first.case_id: spans}))
    assert line == (
        "cost: 10.0 GPU-minutes, 10 % of them for confirmations; planned on 1, 2, 4, 8 GPUs of a host: 7 min, 5 min, "
        "5 min, 5 min"
    )


def test_a_cpu_has_minutes_and_no_fleet(night: RunResult, cpu_run: RunResult) -> None:
    of_cpu = replace(night, environment=cpu_run.environment)
    assert describe_cost(of_cpu) == ["cost: 7.0 minutes, 14 % of them for confirmations"]


def test_the_ten_most_expensive_stand_in_the_details_and_the_summary(gpu_run: RunResult) -> None:
    cases = cases_of(gpu_run, *(float(number) for number in range(20, 40)))
    run = replace(gpu_run, cases={case.case_id: case for case in cases})
    longest = [f"net/fast-{number}/cuda {20 + number} s" for number in range(19, 19 - LONGEST, -1)]
    assert list_longest(run) == longest
    lines = render_text(details(RunView(run), 140), 140, colour=False).partition("most expensive\n")[2].splitlines()
    assert [line.strip() for line in lines[:LONGEST]] == longest
    assert not lines[LONGEST]
    assert f"Most expensive: {', '.join(longest)}\n" in night_summary(RunView(run))

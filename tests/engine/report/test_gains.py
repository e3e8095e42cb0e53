"""The sentence about what a run learned, on made-up sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpugate.report.worth import describe_gains
from gpugate.results.case import CaseResult
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.verdict import NextStep, Outcome, Verdict

TOO_WIDE = (Reason(ReasonCode.INTERVAL_TOO_WIDE, {"half_width": 0.4, "widest": 0.15}),)


def timed(run: RunResult) -> list[CaseResult]:
    return [case for case in run.cases.values() if case.summary is not None]


def judge(case: CaseResult, outcome: Outcome, step: NextStep | None = None) -> None:
    case.verdicts = [Verdict("speedup", case.case_id, outcome, TOO_WIDE, step)]


def test_gains_are_counted_by_their_intervals(gpu_run: RunResult) -> None:
    count = len(timed(gpu_run))
    (words,) = describe_gains(gpu_run)
    assert words.startswith(f"{count} of {count} optimizations gain here, most of all ")
    assert "UNDECIDED" not in words
    assert describe_gains(replace(gpu_run, cases={})) == []


def test_a_gain_beside_other_programs_on_a_cpu_is_to_be_repeated(cpu_run: RunResult, gpu_run: RunResult) -> None:
    said = "; other processes kept up to 1.4 CPU cores busy: repeat the run on idle cores before you rely on a speedup"
    for run, cores, expected in ((cpu_run, 1.4, True), (cpu_run, 0.4, False), (gpu_run, 1.4, False)):
        for case in timed(run):
            assert case.measurement is not None
            counters = {**case.measurement.optimized_counters, "other_cores": cores}
            case.measurement = replace(case.measurement, optimized_counters=counters)
        assert describe_gains(run)[0].endswith(said) is expected


def test_one_gain_of_one_is_not_the_largest(gpu_run: RunResult) -> None:
    first = timed(gpu_run)[0]
    (words,) = describe_gains(replace(gpu_run, cases={first.case_id: first}))
    assert words.startswith(f"1 of 1 optimization gains here: {first.workload}/{first.optimization}, ")


@pytest.mark.parametrize("outcome", [Outcome.ENV_INVALID, Outcome.WRONG, Outcome.NOT_ENGAGED])
def test_a_time_that_is_no_evidence_is_no_gain(gpu_run: RunResult, outcome: Outcome) -> None:
    for case in timed(gpu_run):
        judge(case, outcome)
    assert describe_gains(gpu_run) == []


def test_undecided_cases_are_counted_with_the_command_that_measures_longer(gpu_run: RunResult) -> None:
    first, second, *_ = timed(gpu_run)
    judge(first, Outcome.UNDECIDED, NextStep.MEASURE_LONGER)
    (words,) = describe_gains(gpu_run)
    command = f'pytest perf_tests -k "{first.case_id}" --perf-budget 30'
    assert words.endswith(f"; 1 is UNDECIDED: its interval is wider than +-15 %, and `{command}` measures longer")
    judge(second, Outcome.UNDECIDED, NextStep.FREE_CORES)  # where a longer measurement does not help
    (words,) = describe_gains(gpu_run)
    assert words.endswith("; 2 are UNDECIDED: their intervals are wider than +-15 %")

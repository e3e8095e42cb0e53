"""One command for several cases, and none that records what is wrong."""

from dataclasses import replace

import pytest

from gpugate.judging.next_step import next_step, unless_wrong
from gpugate.report.findings import findings
from gpugate.results.run import RunResult
from gpugate.results.verdict import Check, Outcome, Verdict

NOTHING = "nothing is recorded"


def with_verdicts(run: RunResult, *verdicts: Verdict) -> RunResult:
    """The run with cases that were given these verdicts alone."""
    case = next(iter(run.cases.values()))
    cases = {one.case_id: replace(case, case_id=one.case_id, verdicts=[]) for one in verdicts}
    for verdict in verdicts:
        cases[verdict.case_id].verdicts.append(verdict)
    return replace(run, cases=cases)


def verdict(case_id: str, outcome: Outcome, check: Check = "speedup") -> Verdict:
    return Verdict(check, case_id, outcome, NOTHING, next_step(outcome, case_id))


@pytest.mark.parametrize(
    ("case_ids", "selection"),
    [
        (["net/a/cpu"], ' -k "net/a/cpu"'),
        (["net/a/cpu", "video/net/b/cuda"], ' -k "net/a/cpu or video/net/b/cuda"'),
        ([f"net/{name}/cpu" for name in "abcd"], ' -k "net/"'),
        ([f"{net}/{name}/cpu" for net in ("net", "video/decode") for name in "ab"], ' -k "net/ or video/decode/"'),
        ([f"{net}/a/cpu" for net in ("net", "video", "training", "driving")], ""),
    ],
)
def test_cases_without_a_baseline_are_recorded_by_one_command(
    gpu_run: RunResult, case_ids: list[str], selection: str
) -> None:
    found = findings(with_verdicts(gpu_run, *(verdict(one, Outcome.NO_BASELINE) for one in case_ids)))
    steps = [one.next_step for one in found]
    assert steps == [f'pytest perf_tests{selection} --update-baselines --perf-reason "..."']
    assert [len(one.judged) for one in found] == [len(case_ids)]


def test_what_is_measured_again_is_each_case_by_itself(gpu_run: RunResult) -> None:
    slow = [verdict(one, Outcome.REGRESSED) for one in ("net/a/cpu", "net/b/cpu")]
    assert [one.next_step for one in findings(with_verdicts(gpu_run, *slow))] == [
        f'pytest perf_tests -k "net/{name}/cpu" --perf-budget 30' for name in "ab"
    ]


@pytest.mark.parametrize("outcome", [Outcome.IMPROVED, Outcome.NO_BASELINE])
def test_what_is_wrong_is_not_to_be_recorded(outcome: Outcome) -> None:
    fast, wrong = verdict("net/a/cpu", outcome), verdict("net/a/cpu", Outcome.WRONG, "equivalence")
    assert ["--update-baselines" in one.next_step for one in unless_wrong([wrong, fast])] == [False, False]
    assert unless_wrong([fast]) == [fast]

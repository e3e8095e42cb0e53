"""One command for several cases, and none that records what is wrong."""

from dataclasses import replace

import pytest

from gpugate.judging.next_step import next_step, unless_wrong
from gpugate.report.findings import findings
from gpugate.report.next_step import describe_next_step
from gpugate.results.provenance import Provenance
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.verdict import Check, NextStep, Outcome, Verdict

NOTHING = (Reason(ReasonCode.NO_RECORD),)


def with_verdicts(run: RunResult, *verdicts: Verdict) -> RunResult:
    """The run with cases that were given these verdicts alone."""
    case = next(iter(run.cases.values()))
    cases = {one.case_id: replace(case, case_id=one.case_id, verdicts=[]) for one in verdicts}
    for verdict in verdicts:
        cases[verdict.case_id].verdicts.append(verdict)
    return replace(run, cases=cases)


def verdict(case_id: str, outcome: Outcome, check: Check = "speedup") -> Verdict:
    return Verdict(check, case_id, outcome, NOTHING, next_step(outcome))


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
    assert [one.next_step for one in unless_wrong([wrong, fast])] == [NextStep.REPEAT, None]
    assert unless_wrong([fast]) == [fast]


CASE_ID = "net/fast/cuda"
RERUN = f'pytest mine -k "{CASE_ID}"'
RECORD = f'{RERUN} --update-baselines --perf-reason "..."'
WORDS = {
    NextStep.REPEAT: RERUN,
    NextStep.MEASURE_LONGER: f"{RERUN} --perf-budget 30",
    NextStep.FREE_CORES: f"end the other work on this machine and repeat: {RERUN}; or leave it cores by",
    NextStep.TRACE: f"{RERUN} --torch-trace=DIR, which shows what the optimized side runs instead",
    NextStep.TRACE_BOTH_SIDES: f"{RERUN} --torch-trace=DIR, which shows what both sides run; if these outputs",
    NextStep.RECORD: RECORD,
    NextStep.RECORD_NEW_REFERENCE: f"{RECORD}, if the reference is meant to take what it takes now",
    NextStep.RECORD_NEW_ANCHOR: f"{RECORD}, and gpugate record --new-anchor on its runs, if this is the new normal",
    NextStep.FIND_COMMIT: f"gpugate bisect {CASE_ID} --good 0123456789abcdef",
    NextStep.SAME_CORES: "give this process as many cores as the record has",
    NextStep.COOL_MACHINE: "repeat when the machine is idle and cool, or on one that gpugate doctor calls trustworthy",
    NextStep.RECORD_THIS_MACHINE: f"run it on the machine of the record, or record this one: {RECORD}",
    NextStep.RAISE_BUDGET: "raise --perf-budget",
    NextStep.RAISE_QUOTA: "raise the quota of CPU time, or use fewer threads than it has cores by OMP_NUM_THREADS",
    NextStep.USE_CUDA: "run it on a CUDA device",
    NextStep.CHECK_SIZE: "compare Size.flops and Size.bytes with what a step does",
    NextStep.KEEP_APART: f"end the other work on this machine and repeat: {RERUN}; if it stays, look for a function",
    NextStep.DECLARE_ENGAGEMENT: "let Side.engaged return None where the side did what it is for, and else the reason",
}


def verdict_of(step: NextStep | None, outcome: Outcome) -> Verdict:
    facts = {"commit": "0123456789abcdef", "change": 0.1, "change_low": 0.1, "change_high": 0.1}
    return Verdict("speedup", CASE_ID, outcome, (Reason(ReasonCode.CODE_SLOWER, facts),), step)


def described(step: NextStep | None, run: RunResult, outcome: Outcome = Outcome.REGRESSED) -> str:
    return describe_next_step([verdict_of(step, outcome)], run)


@pytest.mark.parametrize("step", NextStep)
def test_every_step_is_worded_with_the_command_of_the_session(gpu_run: RunResult, step: NextStep) -> None:
    run = replace(gpu_run, command="pytest mine")
    words = described(step, run)
    assert words.startswith(WORDS[step])
    assert [one.next_step for one in findings(with_verdicts(run, verdict_of(step, Outcome.REGRESSED)))] == [words]
    assert described(None, run) == ""


@pytest.mark.parametrize("step", [NextStep.REPEAT, NextStep.MEASURE_LONGER, NextStep.FREE_CORES])
def test_what_a_gate_repeats_is_a_gate(gpu_run: RunResult, step: NextStep) -> None:
    looser = describe_next_step([verdict_of(step, Outcome.REGRESSED)], replace(gpu_run, gate=False))
    assert "--gate" not in looser
    assert described(step, replace(gpu_run, gate=True)) == looser.replace(f'"{CASE_ID}"', f'"{CASE_ID}" --gate')


def test_a_session_with_a_fault_advises_no_recording(gpu_run: RunResult) -> None:
    command = "pytest 'my tests' --perf-baselines b --perf-mutate=slow:30"
    run = replace(gpu_run, command=command, mutated="slow:30")
    assert described(NextStep.RECORD, run, Outcome.IMPROVED) == ""
    assert described(NextStep.RECORD_NEW_ANCHOR, run) == f'{command} -k "{CASE_ID}" --perf-budget 30'


@pytest.mark.parametrize(
    ("command", "elsewhere"),
    [("pytest mine --perf-set=a=b", " --perf-baselines DIR"), ("pytest --perf-baselines b --perf-set=a=b", "")],
)
def test_what_was_measured_of_own_data_is_recorded_elsewhere(gpu_run: RunResult, command: str, elsewhere: str) -> None:
    wanted = f'{command} -k "{CASE_ID}"{elsewhere} --update-baselines --perf-reason "..."'
    assert described(NextStep.RECORD, replace(gpu_run, command=command), Outcome.NO_BASELINE) == wanted


@pytest.mark.parametrize("step", [NextStep.TRACE, NextStep.TRACE_BOTH_SIDES])
def test_no_profile_is_advised_for_a_case_of_several_ranks(gpu_run: RunResult, step: NextStep) -> None:
    case = next(one for one in gpu_run.cases.values() if one.measurement is not None)
    assert case.measurement is not None
    ranked = replace(case.measurement, optimized_counters={"ranks": 2.0})
    gpu_run.cases[CASE_ID] = replace(case, case_id=CASE_ID, measurement=ranked)
    assert described(step, gpu_run) == ""


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("pytest perf_tests --perf-baselines DIR", ""),
        ("pytest", ""),
        (
            "pytest services/x/perf_tests 'my tests' --perf-set=video=a",
            " --path services/x/perf_tests --path 'my tests'",
        ),
    ],
)
def test_a_bisection_has_the_perf_tests_of_the_session(gpu_run: RunResult, command: str, paths: str) -> None:
    slower = Reason(ReasonCode.CODE_SLOWER, {"commit": "1234"})
    failed = Verdict("speedup", "net/a/cpu", Outcome.REGRESSED, (slower,), NextStep.FIND_COMMIT)
    run = with_verdicts(replace(gpu_run, command=command), failed)
    assert describe_next_step([failed], run) == f"gpugate bisect net/a/cpu --good 1234{paths}"
    edited = replace(run, provenance=Provenance(commit="5678", changes="9abc"))
    assert describe_next_step([failed], edited).startswith("commit this code, then gpugate bisect net/a/cpu ")

"""The command to run next, for every outcome that asks for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpugate.results.verdict import Outcome, Verdict

SUITE = "pytest perf_tests"  # a user's own folder has another command, see `as_run_here`
RECORD = "--update-baselines"
REASON = '--perf-reason "..."'
ANY_CASE = '-k "..."'  # the selection that cases share
MUTATE = "--perf-mutate="
BASELINES = "--perf-baselines"
OWN = ("--perf-input", "--perf-checkpoint", "--perf-data")
MOST_NAMED = 3  # of cases, else of workloads, by one command: where more lack a baseline, seldom any has one


def next_step(outcome: Outcome, case_id: str) -> str:
    """The command for an outcome. Only times profit from a longer measurement; outputs and engagement do not."""
    if outcome in (Outcome.NO_BASELINE, Outcome.IMPROVED):
        return record_step(case_id)
    if outcome is Outcome.NOT_ENGAGED:
        return f"{rerun(case_id)} --torch-trace=DIR, which shows what the optimized side runs instead"
    if outcome is Outcome.WRONG:
        return rerun(case_id)
    return "" if outcome is Outcome.PASS else f"{rerun(case_id)} --perf-budget 30"


def busy_step(case_id: str) -> str:
    """The step for times on a noisy or shared CPU, where a longer measurement does not narrow the interval."""
    fewer = f"OMP_NUM_THREADS=1 {rerun(case_id)}"
    return f"end the other work on this machine, or leave it cores: {fewer}, which needs records of as many threads"


def tolerance_step(case_id: str) -> str:
    """The step for wrong outputs: a trace of both sides, or a larger tolerance where the outputs are intended."""
    shown = f"{rerun(case_id)} --torch-trace=DIR, which shows what both sides run"
    return f"{shown}; if these outputs are meant, raise the tolerance of the Optimization"


def rerun(case_id: str) -> str:
    return f"{SUITE} {_selecting(case_id)}"


def record_step(case_id: str) -> str:
    return f"{rerun(case_id)} {RECORD} {REASON}"


def as_run_here(verdict: Verdict, command: str) -> Verdict:
    """The verdict with the command that this session was started by in the place of the suite's own.

    No baseline may hold a fault: a session that put one in advises no recording. Of somebody's own inputs none may
    stand among those of the inputs that ship.
    """
    if MUTATE in command:
        verdict = without_recording(verdict)
    words = command.split()
    elsewhere = any(own in words for own in OWN) and BASELINES not in words
    step = verdict.next_step.replace(RECORD, f"{BASELINES} DIR {RECORD}") if elsewhere else verdict.next_step
    return replace(verdict, next_step=step.replace(SUITE, command))


def unless_wrong(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of one case, none of which advises to record it where its outputs are wrong."""
    if all(verdict.outcome is not Outcome.WRONG for verdict in verdicts):
        return list(verdicts)
    return [without_recording(verdict) for verdict in verdicts]


def without_recording(verdict: Verdict) -> Verdict:
    """The verdict with no command that records; one that is bad, and might have been accepted, is measured again."""
    if RECORD not in verdict.next_step:
        return verdict
    return replace(verdict, next_step=next_step(verdict.outcome, verdict.case_id) if verdict.bad else "")


def of_any_case(verdict: Verdict) -> str:
    """A command that records, with ANY_CASE for the selection of its case, so that cases can share it; others as they
    are. `of_cases` puts a selection back."""
    step = verdict.next_step
    return step.replace(_selecting(verdict.case_id), ANY_CASE) if RECORD in step else step


def of_cases(step: str, case_ids: Sequence[str]) -> str:
    """What `of_any_case` returned for each of these cases, for all of them: by their ids, by their workloads where they
    are many, and without a selection where these are many too."""
    names = case_ids if len(case_ids) <= MOST_NAMED else [f"{_workload(one)}/" for one in case_ids]
    named = list(dict.fromkeys(names))
    if len(named) > MOST_NAMED:
        return step.replace(f" {ANY_CASE}", "")
    return step.replace(ANY_CASE, _selecting(" or ".join(named)))


def _workload(case_id: str) -> str:
    return case_id.rsplit("/", 2)[0]


def _selecting(words: str) -> str:
    return f'-k "{words}"'

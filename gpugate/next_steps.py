"""The command to run next, for every outcome that asks for one."""

from __future__ import annotations

import shlex
from dataclasses import replace

from gpugate.verdict import Outcome, Verdict

SUITE = "pytest perf_tests"  # a user's own folder has another command, see `as_run_here`
RECORD = "--update-baselines"
MUTATE = "--perf-mutate="


def next_step(outcome: Outcome, case_id: str) -> str:
    if outcome is Outcome.NO_BASELINE:
        return f"{SUITE} {RECORD}"  # of everything at once: seldom is only one case missing
    if outcome is Outcome.IMPROVED:
        return record_step(case_id)
    return "" if outcome is Outcome.PASS else f"{rerun(case_id)} --perf-budget 30"


def rerun(case_id: str) -> str:
    return f'{SUITE} -k "{case_id}"'


def record_step(case_id: str) -> str:
    return f"{rerun(case_id)} {RECORD}"


def as_run_here(verdict: Verdict, command: str) -> Verdict:
    """The verdict with the command that this session was started by in the place of the suite's own.

    No baseline may hold a fault: a command that records begins without the one that this session put in.
    """
    if RECORD in verdict.next_step:
        command = shlex.join(word for word in shlex.split(command) if not word.startswith(MUTATE))
    return replace(verdict, next_step=verdict.next_step.replace(SUITE, command))

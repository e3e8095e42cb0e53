"""The command to run next, for every outcome that asks for one."""

from __future__ import annotations

from gpugate.verdict import Outcome


def next_step(outcome: Outcome, case_id: str) -> str:
    if outcome is Outcome.NO_BASELINE:
        return "pytest perf_tests --update-baselines"  # of everything at once: seldom is only one case missing
    if outcome is Outcome.IMPROVED:
        return record_step(case_id)
    return "" if outcome is Outcome.PASS else rerun(case_id)


def rerun(case_id: str) -> str:
    return f'pytest perf_tests -k "{case_id}" --perf-budget 30'


def record_step(case_id: str) -> str:
    return f'pytest perf_tests -k "{case_id}" --update-baselines'

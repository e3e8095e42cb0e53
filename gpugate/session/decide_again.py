"""Decides a stored run again, by the promises and baselines of its own time. Pure: nothing is measured."""

from __future__ import annotations

from dataclasses import replace

from gpugate.errors import ReplayError
from gpugate.judging.rules import decide
from gpugate.measurement.derived import launch_slowdown
from gpugate.results.case import CaseResult
from gpugate.results.changes import Flip
from gpugate.results.run import RunResult
from gpugate.results.verdict import Outcome
from gpugate.store.codec import to_json


def decide_again(run: RunResult) -> RunResult:
    """The run with the summaries and verdicts that its measurements give now; skips, errors and a lost device stay.

    Raises ReplayError for a case that holds what no measurement gives.
    """
    return replace(run, cases={case_id: _decide_case(case, run) for case_id, case in run.cases.items()})


def _decide_case(case: CaseResult, run: RunResult) -> CaseResult:
    # No state of a machine but a lost device makes outputs invalid.
    was_lost = any(one.check == "equivalence" and one.outcome is Outcome.ENV_INVALID for one in case.verdicts)
    measurement = case.measurement
    if measurement is None or was_lost:
        return case
    if case.launch_slowdown is None and case.remembered is not None:  # some runs of format 15 lack it
        case = replace(case, launch_slowdown=launch_slowdown(run.yardsticks, case.remembered.yardsticks))
    try:
        summary = case.summarize(measurement) if measurement.pairs else None
        verdicts = decide(case, run.mode)
    except (ValueError, LookupError, ArithmeticError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise ReplayError(f"{case.case_id} of {run.started_at} cannot be decided ({problem}): measure again") from error
    # The autopsy of a failure does not fit a case that passes now; one that --explain asked for stays.
    was_bad, is_bad = (any(one.needs_autopsy for one in each) for each in (case.verdicts, verdicts))
    return replace(case, summary=summary, verdicts=verdicts, autopsy=case.autopsy if is_bad or not was_bad else None)


def find_changes(stored: RunResult, decided: RunResult) -> tuple[Flip, ...]:
    """Lists the checks that were decided otherwise, in the order of the run; equal outcomes then have other reasons or
    numbers.
    """
    found = []
    for case_id, case in stored.cases.items():
        before, after = ({one.check: one for one in each.verdicts} for each in (case, decided.cases[case_id]))
        for check in {**before, **after}:
            was, now = (each[check].outcome if check in each else None for each in (before, after))
            same = to_json(before.get(check)) == to_json(after.get(check))  # as JSON, where one NaN is like another
            if was is not now or not same:
                found.append(Flip(case_id, check, was, now))
    return tuple(found)

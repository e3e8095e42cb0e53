"""The next step for an outcome, and none that records what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpugate.results.verdict import NextStep, Outcome, Verdict

RECORDING = (
    NextStep.RECORD,
    NextStep.RECORD_NEW_REFERENCE,
    NextStep.RECORD_NEW_ANCHOR,
    NextStep.RECORD_THIS_MACHINE,
)


def next_step(outcome: Outcome) -> NextStep | None:
    """The step for an outcome. Only times profit from a longer measurement; outputs and engagement do not."""
    if outcome in (Outcome.NO_BASELINE, Outcome.IMPROVED):
        return NextStep.RECORD
    if outcome is Outcome.NOT_ENGAGED:
        return NextStep.TRACE
    if outcome is Outcome.WRONG:
        return NextStep.REPEAT
    return None if outcome is Outcome.PASS else NextStep.MEASURE_LONGER


def unless_wrong(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of one case, none of which advises to record it where its outputs are wrong."""
    if all(verdict.outcome is not Outcome.WRONG for verdict in verdicts):
        return list(verdicts)
    return [without_recording(verdict) for verdict in verdicts]


def without_recording(verdict: Verdict) -> Verdict:
    """The verdict with no step that records; a bad one, which might have been accepted, is measured again."""
    if verdict.next_step not in RECORDING:
        return verdict
    return replace(verdict, next_step=next_step(verdict.outcome) if verdict.bad else None)

"""The decision of a gate about processes with given times: it takes further ones as `next_action` decides."""

from __future__ import annotations

from collections.abc import Iterable

from gpugate.judging.actions import Action, Allowed, next_action
from gpugate.judging.evidence import gather
from gpugate.judging.rules import decide_by
from gpugate.measurement.record import Difference, Measurement, Process, SideCost
from gpugate.results.case import CaseResult, Confirmation
from gpugate.results.run import Mode
from gpugate.results.verdict import Verdict

SAME_OUTPUTS = Difference(0.0, 0.0, None, "fresh inputs")
_COST = SideCost(0.0, 0.0)


def measure(builds: Process) -> Measurement:
    """A process with these builds and right outputs, of which nothing was counted."""
    return Measurement(
        "toy/fast/cpu", builds, "budget", (SAME_OUTPUTS,), _COST, _COST, counters_missing="none was counted"
    )


def run_gate(result: CaseResult, waiting: Iterable[Measurement]) -> list[Verdict]:
    """The verdicts of a gate that measures the case on in the `waiting` processes, as `next_action` decides."""
    fresh, allowed = iter(waiting), Allowed(pairs=False)
    while True:
        evidence = gather(result, Mode.GATE)
        further = next(fresh, None) if next_action(evidence, allowed) is Action.PROCESS else None
        if further is None:
            return decide_by(evidence)
        result.attempts.append(Confirmation(further))

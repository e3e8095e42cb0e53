"""The verdict about a sweep: the knee of its throughput is where it was recorded, or next to it. Pure."""

from __future__ import annotations

from gpugate.judging.next_step import next_step
from gpugate.judging.unrecorded import judge_unrecorded
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.series import Sweep
from gpugate.results.verdict import Outcome, Verdict

STEPS_TO_MOVE = 1  # a neighbour may take the knee's place by chance


def judge_knee(sweep: Sweep, mode: Mode = Mode.GATE) -> Verdict:
    """PASS for a knee at its recorded value or at a neighbour of it, REGRESSED for any other knee."""
    now, then = sweep.knee, sweep.recorded_knee
    numbers: dict[str, float | str | None] = {"knee": now, "recorded_knee": then}
    if now is None:
        problem = next((point.problem for point in sweep.points if point.problem), "one value is no sweep")
        few = Reason(ReasonCode.TOO_FEW_POINTS, {"problem": problem})
        return Verdict("knee", sweep.id, Outcome.INCONCLUSIVE, (few,), numbers=numbers)
    if then is None:
        outcome, _ = judge_unrecorded(mode)
        unknown = Reason(ReasonCode.KNEE_NOT_RECORDED)
        return Verdict("knee", sweep.id, outcome, (unknown,), next_step(outcome), numbers)
    values = [point.value for point in sweep.points]
    moved = abs(values.index(now) - values.index(then))
    outcome = Outcome.PASS if moved <= STEPS_TO_MOVE else Outcome.REGRESSED
    found = Reason(ReasonCode.KNEE_MOVED if moved else ReasonCode.KNEE_AS_RECORDED)
    return Verdict("knee", sweep.id, outcome, (found, _curve(sweep)), numbers=numbers)


def _curve(sweep: Sweep) -> Reason:
    """The share of the best throughput by the value of each point."""
    best = sweep.best_speedup
    shares = {str(one.value): "none" if one.speedup is None else one.speedup / best for one in sweep.points}
    return Reason(ReasonCode.THROUGHPUT_CURVE, shares)

"""The verdict about a sweep: the knee of its throughput is where it was recorded, or next to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpugate.results.series import Sweep
from gpugate.results.verdict import NextStep, Outcome, Verdict

STEPS_TO_MOVE = 1  # a neighbour may take the knee's place by chance


def judge_knee(sweep: Sweep) -> Verdict:
    """PASS for a knee at its recorded value or at a neighbour of it, REGRESSED for any other knee."""
    now, then = sweep.knee, sweep.recorded_knee
    numbers: dict[str, float | str | None] = {"knee": now, "recorded_knee": then}
    if now is None:
        problem = next((point.problem for point in sweep.points if point.problem), "one value is no sweep")
        return Verdict("knee", sweep.id, Outcome.INCONCLUSIVE, f"too few points: {problem}", numbers=numbers)
    if then is None:
        reason = f"the knee is at {now}; nothing is recorded to compare it with"
        return Verdict("knee", sweep.id, Outcome.NO_BASELINE, reason, NextStep.RECORD, numbers)
    moved = _steps([point.value for point in sweep.points], then, now)
    where = f"the knee is at {now}" if now == then else f"the knee is at {now}, recorded at {then}"
    outcome = Outcome.PASS if abs(moved) <= STEPS_TO_MOVE else Outcome.REGRESSED
    return Verdict("knee", sweep.id, outcome, f"{where}: {_curve(sweep)}", numbers=numbers)


def _steps(values: Sequence[int], then: int, now: int) -> int:
    return values.index(now) - values.index(then)


def _curve(sweep: Sweep) -> str:
    best = sweep.best_speedup
    shares = (
        f"{point.value} {100 * point.speedup / best:.0f} %" if point.speedup is not None else f"{point.value} none"
        for point in sweep.points
    )
    return f"of the best throughput, {', '.join(shares)}"

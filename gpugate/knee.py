"""A sweep: one parameter over a list of values, and the knee of its throughput. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpugate.next_steps import record_step
from gpugate.result import CaseResult
from gpugate.series import Sweep, SweepPoint
from gpugate.verdict import Outcome, Verdict

KNEE_SHARE = 0.97  # of the best throughput: the smallest value that reaches it is the knee
STEPS_TO_MOVE = 1  # a neighbour may take the knee's place by chance
FEWEST_POINTS = 2


def knee(throughputs: Mapping[int, float]) -> int | None:
    """The smallest value within 3 % of the best; None for fewer than two values."""
    if len(throughputs) < FEWEST_POINTS:
        return None
    enough = KNEE_SHARE * max(throughputs.values())
    return min(value for value, throughput in throughputs.items() if throughput >= enough)


def sweeps(cases: Mapping[str, CaseResult]) -> list[Sweep]:
    """Every sweep of which a point was asked for."""
    groups: dict[tuple[str, str, str], list[SweepPoint]] = {}
    for case in cases.values():
        if case.point is not None:
            key = (case.workload, case.point.sweep, case.device_kind)
            groups.setdefault(key, []).append(_point(case, case.point.value))
    return [_sweep(*key, sorted(found, key=lambda point: point.value)) for key, found in groups.items()]


def _sweep(workload: str, parameter: str, device_kind: str, points: Sequence[SweepPoint]) -> Sweep:
    measured = {point.value: point.speedup for point in points if point.speedup is not None}
    recorded = {point.value: point.recorded for point in points if point.recorded is not None}
    then = knee(recorded) if set(measured) <= set(recorded) else None
    return Sweep(workload, parameter, device_kind, tuple(points), knee(measured), then)


def _point(case: CaseResult, value: int) -> SweepPoint:
    recorded = case.remembered.current.speedup if case.remembered else None
    if case.summary is None:
        return SweepPoint(value, None, None, recorded, case.skipped or case.error or "not measured")
    per_second = case.size.items_per_second(case.summary.optimized_ms.median)
    return SweepPoint(value, per_second, case.summary.speedup.median, recorded)


def judge_knee(sweep: Sweep) -> Verdict:
    """Whether the knee is where it was recorded, or next to it."""
    now, then = sweep.knee, sweep.recorded_knee
    numbers: dict[str, float | str | None] = {"knee": now, "recorded_knee": then}
    if now is None:
        problem = next((point.problem for point in sweep.points if point.problem), "one value is no sweep")
        return Verdict("knee", sweep.id, Outcome.INCONCLUSIVE, f"too few points: {problem}", numbers=numbers)
    if then is None:
        reason = f"the knee is at {now}; nothing is recorded to compare it with"
        return Verdict("knee", sweep.id, Outcome.NO_BASELINE, reason, record_step(_points(sweep)), numbers)
    moved = _steps([point.value for point in sweep.points], then, now)
    where = f"the knee is at {now}" if now == then else f"the knee is at {now}, recorded at {then}"
    outcome = Outcome.PASS if abs(moved) <= STEPS_TO_MOVE else Outcome.REGRESSED
    return Verdict("knee", sweep.id, outcome, f"{where}: {_curve(sweep)}", numbers=numbers)


def _points(sweep: Sweep) -> str:
    """What the ids of its points and its own begin with."""
    return sweep.id.rpartition("/")[0]


def _steps(values: Sequence[int], then: int, now: int) -> int:
    return values.index(now) - values.index(then)


def _curve(sweep: Sweep) -> str:
    best = sweep.best_speedup
    shares = (
        f"{point.value} {100 * point.speedup / best:.0f} %" if point.speedup is not None else f"{point.value} none"
        for point in sweep.points
    )
    return f"of the best throughput, {', '.join(shares)}"

"""Ladders and sweeps as tables of words."""

from __future__ import annotations

from gpugate import units
from gpugate.report.table import Table, columns
from gpugate.results.run import RunResult
from gpugate.results.series import Ladder, Rung, Sweep, SweepPoint, ladders, sweeps
from gpugate.statistics.intervals import Estimate


def series_tables(run: RunResult) -> list[Table]:
    """Every ladder, then every sweep; not one of which every point was skipped, since the report lists those."""
    tried = (sweep for sweep in sweeps(run.cases) if any(point.speedup is not None for point in sweep.points))
    return [*map(ladder_table, ladders(run.cases)), *map(sweep_table, tried)]


def ladder_table(ladder: Ladder) -> Table:
    return Table(
        title=f"ladder of {ladder.workload}/{ladder.device_kind}",
        columns=columns("rung", "items", "gain", "interval", "over the bottom", "interval"),
        rows=tuple(_rung(rung) for rung in ladder.rungs),
        notes=tuple(f"{rung.name}: {rung.why}" for rung in ladder.rungs if rung.why),
    )


def _rung(rung: Rung) -> tuple[str, ...]:
    return (rung.name, _rate(rung.items_per_s), *_estimate(rung.gain), *_estimate(rung.total))


def _estimate(estimate: Estimate | None) -> tuple[str, str]:
    if estimate is None:
        return "", ""
    return units.ratio(estimate.median), units.interval(estimate.low, estimate.high)


def _rate(items_per_s: float | None) -> str:
    return "" if items_per_s is None else units.items_per_second(items_per_s)


def sweep_table(sweep: Sweep) -> Table:
    """Raises ValueError for a sweep of which no point was measured."""
    knee = "no knee: too few points" if sweep.knee is None else f"knee: {sweep.knee}"
    recorded = "" if sweep.recorded_knee is None else f", recorded: {sweep.recorded_knee}"
    return Table(
        title=f"sweep of {sweep.id}",
        columns=columns(sweep.parameter, "items", "speedup, of the best"),
        rows=tuple(_point(point, sweep) for point in sweep.points),
        notes=(f"{knee}{recorded}; the smallest value within 3 % of the best, by speedups, which are from pairs",),
    )


def _point(point: SweepPoint, sweep: Sweep) -> tuple[str, ...]:
    if point.speedup is None:
        return str(point.value), "", point.problem or ""
    return str(point.value), _rate(point.items_per_s), units.percent(point.speedup / sweep.best_speedup)

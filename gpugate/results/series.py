"""Series of cases: a ladder of optimizations on top of each other, and a sweep of one parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpugate.results.case import CaseResult, summarize_decider
from gpugate.results.summary import Summary
from gpugate.statistics.intervals import Estimate
from gpugate.units import Positive
from gpugate.workload import BASELINE, Workload

KNEE_SHARE = 0.97  # of the best throughput: the smallest value that reaches it is the knee
FEWEST_POINTS = 2


@dataclass(frozen=True)
class Rung:
    """One rung as measured. `gain` is over the rung before, `total` over the bottom; None for what is not known.

    `total` is the product of the gains up to here, which were measured apart: its interval comes from theirs.
    """

    name: str
    items_per_s: Positive
    gain: Estimate | None = None
    total: Estimate | None = None


@dataclass(frozen=True)
class Ladder:
    """All rungs of one workload on one kind of device, the bottom first."""

    workload: str
    device_kind: str
    rungs: tuple[Rung, ...]


@dataclass(frozen=True)
class SweepPoint:
    """One measured value of a sweep. `speedup` is over the reference of all points, None with the reason as `problem`;
    `recorded` is the speedup of the record, or None."""

    value: int
    items_per_s: Positive | None
    speedup: Positive | None
    recorded: Positive | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Sweep:
    """All points of one parameter of one workload on one kind of device, by value.

    `recorded_knee` is None where the baseline lacks a point that was measured: it was recorded with other values.
    """

    workload: str
    parameter: str
    device_kind: str
    points: tuple[SweepPoint, ...]
    knee: int | None
    recorded_knee: int | None

    @property
    def best_speedup(self) -> float:
        """Raises ValueError where no point was measured."""
        return max(point.speedup for point in self.points if point.speedup is not None)

    @property
    def id(self) -> str:
        return f"{self.workload}/{self.parameter}/{self.device_kind}"


def rung_number(workload: Workload, name: str) -> int | None:
    """Finds the number of an optimization on its workload's ladder, from 1; None for any other optimization."""
    if not workload.ladder:
        return None
    below, number = BASELINE, 0
    for optimization in workload.optimizations:
        if optimization.compared_with == below:
            below, number = optimization.name, number + 1
            if optimization.name == name:
                return number
    return None


def ladders(cases: Mapping[str, CaseResult]) -> list[Ladder]:
    """Every ladder of which at least one rung was measured, each rung by the process that decides about it."""
    groups: dict[tuple[str, str], list[tuple[int, CaseResult, Summary]]] = {}
    for case in cases.values():
        if case.rung is not None and (decided := summarize_decider(case)) is not None:
            groups.setdefault((case.workload, case.device_kind), []).append((case.rung, case, decided))
    return [
        Ladder(workload, kind, _rungs(sorted(found, key=lambda rung: rung[0])))
        for (workload, kind), found in groups.items()
    ]


def _rungs(measured: Sequence[tuple[int, CaseResult, Summary]]) -> tuple[Rung, ...]:
    """A rung that was not measured breaks the product: those above it have no total."""
    _, first, summary = measured[0]
    bottom_per_s = first.size.items_per_second(summary.reference_ms.median)
    rungs, gains = [Rung(first.compared_with, bottom_per_s, total=_product([]))], []
    for place, (number, case, summary) in enumerate(measured, 1):
        gains.append(summary.speedup)
        total = _product(gains) if place == number else None
        per_s = case.size.items_per_second(summary.optimized_ms.median)
        rungs.append(Rung(case.optimization, per_s, summary.speedup, total))
    return tuple(rungs)


def _product(gains: Sequence[Estimate]) -> Estimate:
    """Medians multiply; an end lies as far out, in logarithms, as the root of the sum of the gains' squared distances.

    Exact for independent normal estimates, and close for others (Zou & Donner, Construction of confidence limits about
    effect measures, Statistics in Medicine 27, 2008).
    """
    median = math.prod(gain.median for gain in gains)
    below = math.hypot(*(math.log(gain.median / gain.low) for gain in gains))
    above = math.hypot(*(math.log(gain.high / gain.median) for gain in gains))
    return Estimate(median, median * math.exp(-below), median * math.exp(above))


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
    decided = summarize_decider(case)
    if decided is None:
        return SweepPoint(value, None, None, recorded, case.skipped or case.error or "not measured")
    per_second = case.size.items_per_second(decided.optimized_ms.median)
    return SweepPoint(value, per_second, decided.speedup.median, recorded)

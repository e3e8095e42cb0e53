"""Series of cases: a ladder of optimizations on top of each other, and a sweep of one parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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
class Sweep:
    """All points of one parameter of one workload on one kind of device: their cases, by value."""

    workload: str
    parameter: str
    device_kind: str
    points: Mapping[int, CaseResult]

    @property
    def id(self) -> str:
        return f"{self.workload}/{self.parameter}/{self.device_kind}"

    @cached_property
    def measured(self) -> dict[int, Summary]:
        """The process that decides about each point with times."""
        found = ((value, summarize_decider(case)) for value, case in self.points.items())
        return {value: decided for value, decided in found if decided is not None}

    @cached_property
    def problems(self) -> dict[int, str]:
        """The reason of each point without times."""
        unmeasured = {value: case for value, case in self.points.items() if value not in self.measured}
        return {value: case.skipped or case.error or "not measured" for value, case in unmeasured.items()}

    @cached_property
    def speedups(self) -> dict[int, float]:
        return {value: decided.speedup.median for value, decided in self.measured.items()}

    @property
    def knee(self) -> int | None:
        return find_knee(self.speedups)

    @property
    def recorded_knee(self) -> int | None:
        """None where the baseline lacks a point that was measured: it was recorded with other values."""
        remembered = ((value, case.remembered) for value, case in self.points.items())
        recorded = {value: record.current.speedup for value, record in remembered if record is not None}
        return find_knee(recorded) if self.measured.keys() <= recorded.keys() else None


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


def find_knee(throughputs: Mapping[int, float]) -> int | None:
    """The smallest value within 3 % of the best; None for fewer than two values."""
    if len(throughputs) < FEWEST_POINTS:
        return None
    enough = KNEE_SHARE * max(throughputs.values())
    return min(value for value, throughput in throughputs.items() if throughput >= enough)


def sweeps(cases: Mapping[str, CaseResult]) -> list[Sweep]:
    """Every sweep of which a point was asked for."""
    groups: dict[tuple[str, str, str], dict[int, CaseResult]] = {}
    for case in cases.values():
        if case.point is not None:
            key = (case.workload, case.point.sweep, case.device_kind)
            groups.setdefault(key, {})[case.point.value] = case
    return [Sweep(*key, points=dict(sorted(found.items()))) for key, found in groups.items()]

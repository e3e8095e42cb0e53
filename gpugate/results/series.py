"""Series of cases: a ladder of optimizations on top of each other, and a sweep of one parameter."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.statistics.intervals import Estimate
from gpugate.units import Positive


@dataclass(frozen=True)
class Rung:
    """One rung as measured. `gain` is over the rung before, `total` over the bottom; None for what is not known.

    `total` is the product of the gains up to here, which were measured apart: its interval comes from theirs.
    """

    name: str
    items_per_s: Positive | None
    gain: Estimate | None = None
    total: Estimate | None = None
    why: str = ""


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

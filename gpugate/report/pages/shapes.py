"""Geometry of the charts: places in percent of a chart's width, so that an SVG needs no fixed size. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpugate import units

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # of a scale, by powers of ten
INSET = 2.0  # percent on either side, in which a mark beyond the scale stands
LEAST_REACH = 0.02  # of a scale
TICKS = (0.04, 0.2, 1.0)  # parts of the reach, of which the smallest has no room for words


@dataclass(frozen=True)
class Scale:
    """A scale of square roots from -`reach` to +`reach`, of shares such as changes from a record: it shows an interval
    of 1 % beside one of 40 %."""

    reach: float

    def place(self, share: float) -> float:
        """Percent of the width; what is beyond the scale is at its end."""
        inside = max(-1.0, min(1.0, share / self.reach))
        return round(50 + (50 - INSET) * math.copysign(math.sqrt(abs(inside)), inside), 2)

    def is_beyond(self, share: float) -> bool:
        return abs(share) > self.reach * (1 + 1e-9)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places with their words, such as `-10 %`."""
        shares = [sign * self.reach * part for sign in (-1, 1) for part in TICKS]
        least = self.reach * TICKS[1]
        words = [f"{100 * one:+.3g} %" if abs(one) >= least else "" for one in shares]
        return [(50.0, "0 %"), *zip(map(self.place, shares), words, strict=True)]


@dataclass(frozen=True)
class Strip:
    """One interval on a scale, beside its tolerance. The numbers are shares of the value at 0; None: not known.

    `allowed` is the tolerated band on either side, `detectable` the smallest slowdown that is caught. With
    `less_is_better`, as for a time, a value to the right is worse. `words` describe the picture to a screen reader.
    """

    value: float
    low: float
    high: float
    allowed: float | None
    detectable: float | None
    words: str
    less_is_better: bool = False

    @property
    def extent(self) -> float:
        return max(map(abs, (self.value, self.low, self.high, self.allowed or 0.0, self.slowdown or 0.0)))

    @property
    def slowdown(self) -> float | None:
        """The detectable slowdown as a change of the time, or of the speedup: 100 % slower is half the speedup."""
        if self.detectable is None:
            return None
        return self.detectable if self.less_is_better else 1 / (1 + self.detectable) - 1


def reach_of(strips: Sequence[Strip], covered: float = 1.0, most: float = 10.0) -> float:
    """The round number up to which a scale contains this share of the strips whole."""
    extents = sorted(strip.extent for strip in strips)
    wanted = extents[min(len(extents) - 1, math.ceil(covered * len(extents)) - 1)] if extents else LEAST_REACH
    return _round_up(min(max(wanted, LEAST_REACH), most))


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in STEPS if step * power >= value * (1 - 1e-9))


def relative(value: float, low: float, high: float, base: float) -> tuple[float, float, float]:
    """Median and ends as shares of `base`."""
    return value / base - 1, low / base - 1, high / base - 1


def write_change(value: float, low: float, high: float) -> str:
    """`-16.7 % (-17.0 %..-16.3 %)`."""
    return f"{units.signed_percent(value)} ({units.signed_percent(low)}..{units.signed_percent(high)})"

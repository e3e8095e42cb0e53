"""Progress reports of a running measurement, and the time that each activity takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

from gpugate.statistics.intervals import Estimate

# Preparing makes the inputs and the baseline's outputs. Counting runs under the profiler; watching, after it, measures
# the counters that need none, such as growing memory.
Doing = Literal[
    "preparing",
    "building",
    "warming up",
    "measuring",
    "counting",
    "watching",
    "checking",
    "proving",
    "confirming",
    "comparing",
]


@dataclass(frozen=True)
class Progress:
    """The state of a running case, reported between blocks and never inside a block.

    `side` is the name of a side, such as `baseline`; while proving, the name of a proof; while confirming, the process
    under way. `build` counts builds of both sides from 1; it is 0 before the first. `speedup` is the estimate so far,
    None before there is any.
    """

    case_id: str
    doing: Doing
    side: str = ""
    build: int = 0
    pairs: int = 0
    speedup: Estimate | None = None
    seconds_left: float | None = None


@dataclass
class Spent:
    """The seconds of a measurement by activity, see `Doing`, from the preparation on."""

    _seconds: dict[str, float] = field(default_factory=dict)
    _doing: Doing = "preparing"
    _since_s: float = field(default_factory=perf_counter)

    def begin(self, doing: Doing) -> None:
        """Ends the previous activity and begins this one."""
        now_s = perf_counter()
        self._seconds[self._doing] = self._seconds.get(self._doing, 0.0) + now_s - self._since_s
        self._doing, self._since_s = doing, now_s

    def seconds(self) -> Mapping[str, float]:
        """Sums the seconds so far, the present activity included."""
        self.begin(self._doing)
        return {doing: round(seconds, 3) for doing, seconds in self._seconds.items()}


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """The `Report` that prints nothing."""

"""What a running measurement tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

# Counting is under the profiler; watching, after it, is what counters say that need none, such as growing memory.
Doing = Literal["building", "warming up", "measuring", "counting", "watching", "checking", "proving", "confirming"]


@dataclass(frozen=True)
class Progress:
    """One moment of one case, told between blocks and never inside one.

    `side` is the name of a side, such as `baseline`; while proving, of a proof; while confirming, the process that is
    waited for. `instance`
    counts fresh builds of both sides from 1; 0 before the first. `speedup`, `low` and `high` are the estimate so far,
    None until there is one.
    """

    case_id: str
    doing: Doing
    side: str = ""
    instance: int = 0
    pairs: int = 0
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    seconds_left: float | None = None


@dataclass
class Spent:
    """Where the time of a measurement goes, by what is being done."""

    clock: Callable[[], float] = perf_counter
    _seconds: dict[str, float] = field(default_factory=dict)
    _now: tuple[str, float] | None = None

    def begin(self, doing: Doing) -> None:
        """Ends what was being done before."""
        self.seconds()
        self._now = doing, self.clock()

    def seconds(self) -> Mapping[str, float]:
        """So far, what is being done included."""
        now = self.clock()
        if self._now is not None:
            doing, since = self._now
            self._seconds[doing] = self._seconds.get(doing, 0.0) + now - since
            self._now = doing, now
        return {doing: round(seconds, 3) for doing, seconds in self._seconds.items()}


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """The `Report` of a measurement that nobody watches."""

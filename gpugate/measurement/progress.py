"""What a running measurement tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Doing = Literal["building", "warming up", "measuring", "counting", "checking", "proving", "confirming"]


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


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """The `Report` of a measurement that nobody watches."""

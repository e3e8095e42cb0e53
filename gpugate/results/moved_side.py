"""Attribution of a changed speedup to the side whose time changed: the reference or the optimized side. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from gpugate import units

LEAST = 0.003  # log-time: the tightest tolerance there is
MOST = 0.5  # a side that moved by less than this share of the other's move did not move


class Times(NamedTuple):
    """Milliseconds per step of both sides, in one measurement or record."""

    reference_ms: float
    optimized_ms: float


def mostly_the_reference(then: Times, now: Times) -> bool:
    """True where the reference's time changed by more than twice as much as the optimized side's, up or down.

    A machine that became slower or faster changes the times of both sides by the same factor.
    """
    reference, optimized = (abs(math.log(after / before)) for before, after in zip(then, now, strict=True))
    return reference >= LEAST and optimized < MOST * reference


def in_words(then: Times, now: Times) -> str:
    """`optimized 10.00 ms -> 10.35 ms, reference 30.00 ms -> 43.50 ms: mostly the reference moved`."""
    moves = [
        f"{side} {units.milliseconds(before)} -> {units.milliseconds(after)}"
        for side, before, after in zip(("reference", "optimized"), then, now, strict=True)
    ]
    blamed = ": mostly the reference moved" if mostly_the_reference(then, now) else ""
    return f"{moves[1]}, {moves[0]}{blamed}"

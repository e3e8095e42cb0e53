"""Rests between blocks: until loaders have refilled their stock, and until a GPU at its power limit has recovered.

A capped clock is normal, but it swings: two identical sides of a power-hungry model differed by 2 % from pair to pair
(1425 to 1890 of 1980 MHz), where a model that stays below the limit differs by 0.05 %. After a rest, the GPU runs the
blocks of both sides at its clock for short bursts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import sleep

FIRST_REST_S = 0.02  # as long as a block
LONGEST_REST_S = 0.16
LONGEST_REFILL_S = 0.5


@dataclass
class Rest:
    """The time for which the device idles before every block of one measurement; 0 until a clock was capped."""

    seconds: float = 0.0
    sleep: Callable[[float], None] = sleep

    def take(self) -> None:
        if self.seconds:
            self.sleep(self.seconds)

    def refill(self, stock_steps: int, step_ms: float) -> None:
        """Waits until the loaders of the side that has just run have refilled its stock, at the rate of that run.

        Without the wait they would use cores during the other side's block, and fill their stock at its expense.
        """
        if stock_steps:
            self.sleep(min(LONGEST_REFILL_S, stock_steps * step_ms / 1e3))

    def lengthen(self) -> bool:
        """Doubles the rest; returns False where the rest has its full length already."""
        if self.seconds >= LONGEST_REST_S:
            return False
        self.seconds = max(FIRST_REST_S, 2 * self.seconds)
        return True

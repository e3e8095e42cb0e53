"""Rests between blocks: until loaders have refilled, and for a GPU that its power limit slows down.

A capped clock is nobody's fault, but it swings: two identical sides of a power-hungry model differed by 2 % from pair
to pair (1425 to 1890 of 1980 MHz), where a model that stays below the limit gives 0.05 %. Rested, the GPU runs every
block at the clock that it has for short bursts, the same for both sides.
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
    """How long the device idles before every block of one measurement; nothing until a clock was capped."""

    seconds: float = 0.0
    sleep: Callable[[float], None] = sleep

    def take(self) -> None:
        if self.seconds:
            self.sleep(self.seconds)

    def refill(self, stock_steps: int, step_ms: float) -> None:
        """Waits for the loaders of the side that has just run to have its stock again, at the rate they showed.

        They would take cores away from the other side's block, and get their own stock for free.
        """
        if stock_steps:
            self.sleep(min(LONGEST_REFILL_S, stock_steps * step_ms / 1e3))

    def lengthen(self) -> bool:
        """Doubles the rest; False where it is as long as it gets."""
        if self.seconds >= LONGEST_REST_S:
            return False
        self.seconds = max(FIRST_REST_S, 2 * self.seconds)
        return True

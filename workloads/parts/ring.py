"""A ring of slots: a slot is reused only when its previous use is over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_Slot = TypeVar("_Slot")


class Ring(Generic[_Slot]):
    """Slots handed out in turn; `wait(slot)` returns once the slot's previous use is over."""

    def __init__(self, slots: Sequence[_Slot], wait: Callable[[_Slot], None]) -> None:
        if not slots:
            raise ValueError("a ring of 0 slots has nothing to hand out: give at least 1")
        self.slots = tuple(slots)
        self._turn = itertools.cycle(self.slots)
        self._wait = wait

    def take(self) -> _Slot:
        """The slot that was taken longest ago, free again."""
        slot = next(self._turn)
        self._wait(slot)
        return slot

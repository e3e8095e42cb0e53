"""A ring that carries steps between host and device: its slots, their buffers, and the events that order the copies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

_Slot = TypeVar("_Slot")


class Ring(Generic[_Slot]):
    """Slots handed out in turn; `wait(slot)` returns once the slot's previous use is over."""

    def __init__(self, slots: Sequence[_Slot], wait: Callable[[_Slot], None]) -> None:
        self.slots = tuple(slots)
        self._turn = itertools.cycle(self.slots)
        self._wait = wait

    def take(self) -> _Slot:
        """The slot that was taken longest ago, free again."""
        slot = next(self._turn)
        self._wait(slot)
        return slot


@dataclass
class Buffers:
    """One slot's page-locked host buffers, and the event after which the device uses neither of them."""

    inputs: Tensor
    output: Tensor
    done: torch.cuda.Event = field(default_factory=torch.cuda.Event)


@dataclass
class StagedSlot:
    """A slot whose copies run on streams of their own, with the events that order them around the compute stream."""

    host: Buffers
    inputs: Tensor  # on the device
    result: Tensor | None = None
    arrived: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    computed: torch.cuda.Event = field(default_factory=torch.cuda.Event)


@dataclass
class GraphSlot:
    """A slot with its whole step, copy in to copy out, on a stream of its own: `run` is one graph launch."""

    host: Buffers
    stream: torch.cuda.Stream
    run: Callable[[], object]


def wait(slot: StagedSlot | GraphSlot) -> None:
    """Waits until the device no longer uses the slot's host buffers."""
    # A finished event costs a query; only an unfinished one costs a synchronizing call.
    if not slot.host.done.query():  # type: ignore[no-untyped-call]
        slot.host.done.synchronize()


def unpinned(ring: Ring[StagedSlot] | Ring[GraphSlot]) -> str | None:
    """The number of host buffers of the ring that are not page-locked, in words; None if all are."""
    buffers = [buffer for slot in ring.slots for buffer in (slot.host.inputs, slot.host.output)]
    pageable = sum(not buffer.is_pinned() for buffer in buffers)
    return f"{pageable} of the ring's {len(buffers)} host buffers are pageable" if pageable else None

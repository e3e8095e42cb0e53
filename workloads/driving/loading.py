"""Sources of batches of driving frames on the device: each returns the next batch, in order, ready for use.

The sources from the slowest to the fastest: blocking copies, page-locked buffers, copies on a stream of their own,
frames that lie on the device already.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from workloads.driving.data import Frames
from workloads.driving.delivery import Batch, BatchOrder, Place
from workloads.driving.reading import HostBatches
from workloads.parts.prefetcher import Prefetcher
from workloads.parts.ring import Ring

PINNED_SLOTS = 3  # one is filled, one is copied, one is in use


class Source(Protocol):
    """A source of batches; `stock` is the number of batches that may be ready before they are requested."""

    stock: int

    def take(self) -> Batch:
        """The next batch on the device, ready on the current stream; it may be overwritten once the next is taken."""

    def why_not(self) -> str | None:
        """The reason why batches did not come as they should, in words, or None."""

    def close(self) -> None:
        """Ends workers, frees buffers."""


class Blocking:
    """Pageable copies, each of which waits for all earlier work of the device."""

    def __init__(self, batches: HostBatches, device: torch.device) -> None:
        self._batches, self._device, self.stock = batches, device, batches.stock

    def take(self) -> Batch:
        return Batch(*(tensor.to(self._device) for tensor in next(self._batches)))

    def why_not(self) -> str | None:
        alive, wanted = self._batches.workers_alive(), self._batches.workers
        return None if alive == wanted else f"{alive} of {wanted} worker processes are alive"

    def close(self) -> None:
        self._batches.close()


@dataclass
class _Staged:  # cuda only
    """Page-locked buffers, and the event after which the device no longer reads them."""

    batch: Batch
    done: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event())  # type: ignore[no-untyped-call]


class Collated:
    """Fills page-locked buffers with the batches that a loader has stacked: one more copy on the host."""

    def __init__(self, batches: HostBatches) -> None:
        self._batches = batches

    def fill(self, target: Batch) -> None:
        for buffer, tensor in zip(target, next(self._batches), strict=True):
            buffer.copy_(tensor)

    def close(self) -> None:
        self._batches.close()


class Gathered:
    """Fills page-locked buffers with frames straight from the file: the only copy on the host."""

    def __init__(self, frames: Frames, order: BatchOrder) -> None:
        self._frames, self._order = frames, iter(order)

    def fill(self, target: Batch) -> None:
        target.indices.copy_(torch.tensor(next(self._order)))
        frames = self._frames
        for buffer, stored in zip(target[:3], (frames.raw, frames.commands, frames.waypoints), strict=True):
            torch.index_select(stored, 0, target.indices, out=buffer)

    def close(self) -> None:
        """There is nothing to release."""


class PinnedBatches(Iterator[Batch]):  # cuda only
    """A ring of page-locked buffers that `filling` fills in turn.

    `ahead` is the number of batches that the consumer requests before it has enqueued all work that reads the first of
    them, apart from the batch that it requests. A buffer is filled again when the device has finished with its last
    content.
    """

    def __init__(self, filling: Collated | Gathered, example: Batch, ahead: int) -> None:
        self._filling, self._ahead = filling, ahead
        self._ring = Ring([_Staged(_pinned_like(example)) for _ in range(PINNED_SLOTS)], _wait)
        self._lent: deque[_Staged] = deque()

    def __next__(self) -> Batch:
        if len(self._lent) > self._ahead:
            self._lent.popleft().done.record()
        staged = self._ring.take()
        self._filling.fill(staged.batch)
        self._lent.append(staged)
        return staged.batch

    def why_not(self) -> str | None:
        pageable = sum(not buffer.is_pinned() for staged in self._ring.slots for buffer in staged.batch)
        return f"{pageable} of the host buffers are pageable" if pageable else None

    def close(self) -> None:
        self._filling.close()


def _wait(staged: _Staged) -> None:  # cuda only
    staged.done.synchronize()  # also where the event is over, so that every step has the same number of waiting calls


def _pinned_like(batch: Batch) -> Batch:  # cuda only
    return Batch(*(torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in batch))


class Pinned:  # cuda only
    """Non-blocking copies out of page-locked memory, on the stream that computes."""

    stock = 0

    def __init__(self, batches: PinnedBatches, device: torch.device) -> None:
        self._batches, self._device = batches, device

    def take(self) -> Batch:
        return Batch(*(tensor.to(self._device, non_blocking=True) for tensor in next(self._batches)))

    def why_not(self) -> str | None:
        return self._batches.why_not()

    def close(self) -> None:
        torch.cuda.synchronize(self._device)
        self._batches.close()


class Prefetched:  # cuda only
    """Copies out of page-locked memory on a stream of their own, while the previous batch is used."""

    stock = 1

    def __init__(self, batches: PinnedBatches, device: torch.device) -> None:
        self._batches, self._prefetcher = batches, Prefetcher(batches, device)

    def take(self) -> Batch:
        return Batch(*self._prefetcher.take())

    def copying(self) -> bool:
        """True while the batch after the current one is still being copied."""
        return self._prefetcher.copying()

    def why_not(self) -> str | None:
        return self._batches.why_not()

    def close(self) -> None:
        self._prefetcher.close()
        self._batches.close()


class Resident:
    """All frames lie on the device, as bytes, and so does the order: no step copies anything or waits for the host."""

    stock = 0

    def __init__(self, frames: Frames, table: Tensor, batch: int, device: torch.device) -> None:
        self._images, self._commands = frames.raw.to(device), frames.commands.to(device)
        self._waypoints = frames.waypoints.to(device)
        self._place = Place(table, batch, device)

    @property
    def state(self) -> Tensor:
        """The tensor that a batch changes: int64 [], the place in the order."""
        return self._place.position

    def take(self) -> Batch:
        turn = self._place.next()
        labels = self._commands.index_select(0, turn), self._waypoints.index_select(0, turn)
        return Batch(self._images.index_select(0, turn), *labels, turn)

    def why_not(self) -> str | None:
        return None

    def close(self) -> None:
        """There is nothing to release: the device's allocator knows all memory in use."""


def stock_steps(source: Source, iterations: int) -> int:
    """The number of steps whose batches may be in stock, rounded up."""
    return math.ceil(source.stock / iterations)

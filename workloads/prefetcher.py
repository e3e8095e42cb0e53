"""Batches on the device before they are asked for: the next one is copied on a stream of its own while one is used."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

Batch = tuple[Tensor, ...]
SLOTS = 2  # one is used, the other one is filled


class Order(Protocol):
    """What keeps the copies and the uses of slot 0 and slot 1 apart."""

    def made(self, buffers: Batch) -> None:
        """These buffers were allocated: no copy may begin before their memory's last user is done."""

    def copy(self, slot: int, targets: Batch, sources: Batch, last: bool) -> None:
        """Copies into a slot after its last use; `last` says that the slot is then full."""

    def begin_use(self, slot: int) -> None:
        """What the caller enqueues from now on comes after the slot's copies."""

    def end_use(self, slot: int) -> None:
        """What the caller has enqueued so far was the slot's use."""

    def join(self) -> None:
        """Until no copy is in flight."""


class CudaOrder:  # cuda only
    """Events between the copy stream and whichever stream is current in the caller."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._arrived = [torch.cuda.Event() for _ in range(SLOTS)]  # type: ignore[no-untyped-call]
        self._used = [torch.cuda.Event() for _ in range(SLOTS)]  # type: ignore[no-untyped-call]

    def made(self, buffers: Batch) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        for buffer in buffers:
            buffer.record_stream(self._stream)  # freed while a copy is in flight, its memory stays ours until then

    def copy(self, slot: int, targets: Batch, sources: Batch, last: bool) -> None:
        self._stream.wait_event(self._used[slot])  # at once over for a slot that was never used
        with torch.cuda.stream(self._stream):
            for target, source in zip(targets, sources, strict=True):
                # The allocator of page-locked memory keeps the source until this copy is over, whoever drops it.
                target.copy_(source, non_blocking=True)
        if last:
            self._arrived[slot].record(self._stream)

    def begin_use(self, slot: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._arrived[slot])

    def end_use(self, slot: int) -> None:
        self._used[slot].record(torch.cuda.current_stream(self._device))

    def join(self) -> None:
        self._stream.synchronize()


class HostOrder:
    """On a CPU a copy is over when it returns."""

    def made(self, buffers: Batch) -> None:
        """Nothing is in flight."""

    def copy(self, slot: int, targets: Batch, sources: Batch, last: bool) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    def begin_use(self, slot: int) -> None:
        """Nothing is in flight."""

    def end_use(self, slot: int) -> None:
        """Nothing is in flight."""

    def join(self) -> None:
        """Nothing is in flight."""


class Prefetcher:
    """Hands out batches on `device`, each with the next one's copy already enqueued on another stream.

    `batches` yields tuples of host tensors, page-locked where the copies are to overlap (`unpinned` counts those that
    are not), all with the shapes and types of the first. `pieces` consecutive tuples make one batch, joined along
    dimension 0. The device memory is two sets of buffers that are owned here and filled in turn: a batch lasts until
    the next one is taken, and is to be used on the stream that is current then.
    """

    def __init__(self, batches: Iterator[Batch], device: torch.device, pieces: int = 1) -> None:
        if pieces < 1:
            raise ValueError(f"a batch of {pieces} pieces is empty: give at least 1")
        self.unpinned = 0
        self._batches, self._device, self._pieces = batches, device, pieces
        self._order: Order = CudaOrder(device) if device.type == "cuda" else HostOrder()
        self._slots: list[Batch] = []
        self._copied = self._taken = 0

    def take(self) -> Batch:
        """The next batch, ready on the current stream; the one taken before may be overwritten from now on.

        Raises StopIteration after the last whole batch, and at once whatever `batches` raises.
        """
        if self._taken:
            self._order.end_use((self._taken - 1) % SLOTS)
        if self._copied == self._taken:
            self._copy_next()  # the first batch of all; later ones were copied in the call before
        if self._copied == self._taken:
            raise StopIteration
        slot = self._taken % SLOTS
        self._order.begin_use(slot)
        self._taken += 1
        self._copy_next()
        return self._slots[slot]

    def close(self) -> None:
        """Waits for the copies in flight and lets go of the buffers and the batches."""
        self._order.join()
        self._slots, self._batches = [], iter(())

    def _copy_next(self) -> None:
        """Enqueues the copies of one batch; nothing counts as copied when `batches` ends within it.

        All its pieces first, then all copies at once: they run beside what the caller enqueues next, also where its
        loop then waits for the device, and not while it waits here for the loader.
        """
        sent = list(islice(self._batches, self._pieces))
        if len(sent) < self._pieces:
            return
        slot = self._copied % SLOTS
        for piece, sources in enumerate(sent):
            self._check(sources)
            parts = tuple(_part(buffer, piece, self._pieces) for buffer in self._slots[slot])
            self._order.copy(slot, parts, sources, last=piece == self._pieces - 1)
        self._copied += 1

    def _check(self, sources: Batch) -> None:
        """Makes the buffers from the first tuple; raises ValueError for a later one that does not fit them."""
        if not self._slots:
            self._slots = [tuple(self._buffer(source) for source in sources) for _ in range(SLOTS)]
            self._order.made(tuple(buffer for slot in self._slots for buffer in slot))
        wanted = [(_part(buffer, 0, self._pieces).shape, buffer.dtype) for buffer in self._slots[0]]
        found = [(source.shape, source.dtype) for source in sources]
        if found != wanted:
            raise ValueError(f"a batch has {_words(found)} where the first had {_words(wanted)}: give equal batches")
        if self._device.type == "cuda":
            self.unpinned += sum(not source.is_pinned() for source in sources)  # cuda only

    def _buffer(self, source: Tensor) -> Tensor:
        shape = (self._pieces * source.shape[0], *source.shape[1:])
        return torch.empty(shape, dtype=source.dtype, device=self._device)


def _part(buffer: Tensor, piece: int, pieces: int) -> Tensor:
    length = buffer.shape[0] // pieces
    return buffer[piece * length : (piece + 1) * length]


def _words(found: list[tuple[torch.Size, torch.dtype]]) -> str:
    return ", ".join(f"{list(shape)} {str(dtype).removeprefix('torch.')}" for shape, dtype in found)

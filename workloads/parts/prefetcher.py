"""Batches copied to the device ahead of their use: a stream of its own copies the next one while one is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

Batch = tuple[Tensor, ...]
Copy = tuple[Tensor, Tensor]  # to, from
SLOTS = 2  # one is used, the other one is filled


class HostOrder:
    """The order between the copies and the uses of slot 0 and slot 1; on a CPU a copy is over when it returns."""

    def made(self, buffers: Batch) -> None:
        """Registers new buffers: no copy may begin before the last user of their memory has finished."""

    def copy(self, slot: int, copies: Sequence[Copy]) -> None:
        """Fills a slot after its last use."""
        for target, source in copies:
            target.copy_(source)

    def begin_use(self, slot: int) -> None:
        """Orders all work that the caller enqueues from now on after the slot's copies."""

    def end_use(self, slot: int) -> None:
        """Ends the slot's use with the work that the caller has enqueued so far."""

    def copying(self, slot: int) -> bool:
        """True while the slot is not full."""
        return False

    def join(self) -> None:
        """Waits until no copy is in flight."""


class CudaOrder(HostOrder):  # cuda only
    """Events between the copy stream and the caller's current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._arrived = [torch.cuda.Event() for _ in range(SLOTS)]  # type: ignore[no-untyped-call]
        self._used = [torch.cuda.Event() for _ in range(SLOTS)]  # type: ignore[no-untyped-call]

    def made(self, buffers: Batch) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        for buffer in buffers:
            buffer.record_stream(self._stream)  # freed while a copy is in flight, its memory stays ours until then

    def copy(self, slot: int, copies: Sequence[Copy]) -> None:
        self._stream.wait_event(self._used[slot])  # already over for a slot that was never used
        with torch.cuda.stream(self._stream):
            for target, source in copies:
                # The allocator of page-locked memory keeps the source until this copy is over, whoever drops it.
                target.copy_(source, non_blocking=True)
        self._arrived[slot].record(self._stream)

    def begin_use(self, slot: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._arrived[slot])

    def end_use(self, slot: int) -> None:
        self._used[slot].record(torch.cuda.current_stream(self._device))

    def copying(self, slot: int) -> bool:
        return not self._arrived[slot].query()  # type: ignore[no-untyped-call]

    def join(self) -> None:
        self._stream.synchronize()


class _Slot(NamedTuple):
    """Buffers for one batch, and views of the places of its pieces."""

    batch: Batch
    parts: tuple[Batch, ...]


class Prefetcher:
    """Hands out batches on `device`, and copies the next one on another stream.

    `batches` yields tuples of host tensors, page-locked where the copies are to overlap, all with the shapes and types
    of the first. `pieces` consecutive tuples make one batch, joined along dimension 0. The prefetcher owns two sets of
    device buffers and fills them in turn: a batch is valid until the next one is taken, and must be used on the stream
    that is current then.
    """

    def __init__(self, batches: Iterator[Batch], device: torch.device, pieces: int = 1) -> None:
        self._batches, self._device, self._pieces = batches, device, pieces
        self._order = CudaOrder(device) if device.type == "cuda" else HostOrder()
        self._slots: list[_Slot] = []
        self._copied = self._taken = 0

    def take(self, ahead: bool = True) -> Batch:
        """The next batch, ready on the current stream; the one taken before may be overwritten from now on.

        The copy of the batch after it is enqueued first; with `ahead` False that is left to `copy_next`, for a caller
        that has work to enqueue before it waits for the loader. Raises StopIteration after the last whole batch, and
        immediately any error of `batches`.
        """
        if self._taken:
            self._order.end_use((self._taken - 1) % SLOTS)
        self.copy_next()  # unless it was copied ahead
        if self._copied == self._taken:
            raise StopIteration
        slot = self._taken % SLOTS
        self._order.begin_use(slot)
        self._taken += 1
        if ahead:
            self.copy_next()
        return self._slots[slot].batch

    def copy_next(self) -> None:
        """Enqueues the copies of the next batch, unless it has them; no copy counts when `batches` ends within it.

        All pieces are fetched first, then all copies are enqueued without a pause: they run beside the work that the
        caller enqueued before or enqueues next, also where its loop then waits for the device, and not while this
        method waits for the loader.
        """
        if self._copied > self._taken:
            return
        sent = list(islice(self._batches, self._pieces))
        if len(sent) < self._pieces:
            return
        if not self._slots:
            self._slots = [self._slot(sent[0]) for _ in range(SLOTS)]
            self._order.made(tuple(buffer for slot in self._slots for buffer in slot.batch))
        slot = self._copied % SLOTS
        pairs = zip(self._slots[slot].parts, sent, strict=True)
        self._order.copy(slot, [copy for parts, sources in pairs for copy in zip(parts, sources, strict=True)])
        self._copied += 1

    def copying(self) -> bool:
        """True while the batch after the current one is still being copied."""
        return self._copied > self._taken and self._order.copying(self._taken % SLOTS)

    def close(self) -> None:
        """Waits for the copies in flight and releases the buffers and the batches."""
        self._order.join()
        self._slots, self._batches = [], iter(())

    def _slot(self, piece: Batch) -> _Slot:
        each = [torch.empty((self._pieces, *one.shape), dtype=one.dtype, device=self._device) for one in piece]
        parts = tuple(tuple(buffer[number] for buffer in each) for number in range(self._pieces))
        return _Slot(tuple(buffer.flatten(0, 1) for buffer in each), parts)

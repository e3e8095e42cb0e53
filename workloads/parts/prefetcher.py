"""Batches copied to the device ahead of their use: a stream of its own copies the next one while one is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice

import torch
from torch import Tensor

Batch = tuple[Tensor, ...]


class Prefetcher:
    """Hands out batches on `device`, and copies the next one on another stream.

    `batches` yields tuples of host tensors, page-locked where the copies are to overlap. `pieces` consecutive tuples
    make one batch, joined along dimension 0. A batch must be used on the stream that is current when it is taken; its
    memory is used again after that work, when nothing refers to the batch any more. On a CPU a copy is over when it
    returns.
    """

    def __init__(self, batches: Iterator[Batch], device: torch.device, pieces: int = 1) -> None:
        self._batches, self._device, self._pieces = batches, device, pieces
        self._next: Batch | None = None
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # cuda only
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # cuda only

    def take(self, ahead: bool = True) -> Batch:
        """The next batch, ready on the current stream.

        The copy of the batch after it is enqueued first; with `ahead` False that is left to `copy_next`, for a caller
        that has work to enqueue before it waits for the loader. Raises StopIteration after the last whole batch, and
        immediately any error of `batches`.
        """
        self.copy_next()  # unless it was copied ahead
        if self._next is None:
            raise StopIteration
        batch, self._next = self._next, None
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)  # cuda only
            current.wait_event(self._arrived)  # cuda only
            for tensor in batch:
                tensor.record_stream(current)  # cuda only
        if ahead:
            self.copy_next()
        return batch

    def copy_next(self) -> None:
        """Enqueues the copies of the next batch, unless it has them; no copy counts when `batches` ends within it.

        All pieces are fetched first, then all copies are enqueued without a pause: they run beside the work that the
        caller enqueued before or enqueues next, also where its loop then waits for the device, and not while this
        method waits for the loader.
        """
        if self._next is not None:
            return
        sent = list(islice(self._batches, self._pieces))
        if len(sent) < self._pieces:
            return
        with self._stream or nullcontext():
            self._next = tuple(map(self._joined, zip(*sent, strict=True)))
        if self._stream is not None:
            self._arrived.record(self._stream)  # cuda only

    def copying(self) -> bool:
        """True while the batch after the current one is still being copied."""
        if self._next is None or self._stream is None:
            return False
        return not self._arrived.query()  # type: ignore[no-untyped-call]  # cuda only

    def close(self) -> None:
        """Waits for the copies in flight and releases the batches."""
        if self._stream is not None:
            self._stream.synchronize()  # cuda only
        self._next, self._batches = None, iter(())

    def _joined(self, parts: Batch) -> Tensor:
        joined = torch.empty((len(parts), *parts[0].shape), dtype=parts[0].dtype, device=self._device)
        for place, part in zip(joined, parts, strict=True):
            # The allocator of page-locked memory keeps the source until this copy is over, whoever drops it.
            place.copy_(part, non_blocking=True)
        return joined.flatten(0, 1)

"""Batches of a DataLoader, by this process or by workers, and their copies to the device ahead of their use.

The workers end with their side: none is left, and none is awaited. Forked workers begin in milliseconds and share the
data of this process, and they use no device. A stream of its own copies the next batch while one is used.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workloads.parts.stages import stage

STUCK_S = 30.0  # a batch takes a worker a second at most: a worker silent for this long has failed
DYING_S = 1.0
MOST_WAITS = 10_000  # that are kept
ENDING_S = 5.0  # for a worker that was ordered to end
_Batch = TypeVar("_Batch")
Tensors = tuple[Tensor, ...]


class HostBatches(Iterator[_Batch], Generic[_Batch]):
    """The batches of `order`, lists of positions in `dataset`; `workers` processes have `ahead` batches each ready.

    With 0 workers the caller prepares a batch. The loader draws no random number of this process.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        order: Iterable[Sequence[int]],
        workers: int,
        ahead: int,
        pinned: bool = False,
        collate: Callable[[list[Any]], _Batch] | None = None,
    ) -> None:
        of_workers = {"prefetch_factor": ahead, "timeout": STUCK_S, "multiprocessing_context": "fork"}
        self._loader = DataLoader(
            dataset,
            batch_sampler=order,  # type: ignore[arg-type]  # it need not end
            collate_fn=collate,
            num_workers=workers,
            pin_memory=pinned,
            generator=torch.Generator(),
            persistent_workers=workers > 0,
            **(of_workers if workers else {}),  # type: ignore[arg-type]
        )
        self._waits_ms = deque[float](maxlen=MOST_WAITS)  # which nobody may take
        self.begin()

    def begin(self) -> None:
        """Begins the order, or begins it anew after its end: the workers stay."""
        with warnings.catch_warnings():
            # Python 3.12 warns of any fork beside threads; these children compute on their own data, and take no lock.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            self._batches: Any = iter(self._loader)

    def __next__(self) -> _Batch:
        """Raises a worker's ValueError, in its own words, and RuntimeError within seconds when a worker has died."""
        began = perf_counter()
        try:
            with stage("__next__"):
                batch: _Batch = next(self._batches)
        except ValueError as error:  # of a worker: its whole traceback, whose last line has the cause
            raise ValueError(str(error).strip().splitlines()[-1].removeprefix("ValueError: ")) from error
        except (RuntimeError, OSError, EOFError) as error:  # a dead worker causes any of these
            ended = wait([worker.sentinel for worker in self.workers], DYING_S)  # its connections break first
            for worker in [one for one in self.workers if one.sentinel in ended]:
                worker.join()  # takes the signal of its death, so that it interrupts nothing later
                died = f"DataLoader worker process {worker.pid} died with exit code {worker.exitcode}"
                raise RuntimeError(f"{died}: look for what killed it, such as too little memory") from error
            raise
        self._waits_ms.append(1e3 * (perf_counter() - began))
        return batch

    def take_waits_ms(self) -> list[float]:
        """The milliseconds in which the caller waited for each batch, or prepared it, since the last call."""
        taken = list(self._waits_ms)
        self._waits_ms.clear()
        return taken

    @property
    def workers(self) -> Sequence[BaseProcess]:
        """The worker processes; none where this process prepares the batches."""
        workers: Sequence[BaseProcess] = getattr(self._batches, "_workers", ())
        return workers

    def close(self) -> None:
        """Ends the workers and waits for them: an exception's traceback would keep them from garbage collection."""
        batches, workers, self._batches = self._batches, self.workers, iter(())
        # A signal handler raises a worker's death once, anywhere in the program: possibly here.
        with suppress(RuntimeError):
            if workers:
                batches._shutdown_workers()
        for worker in workers:
            worker.terminate()
            worker.join(ENDING_S)


class Prefetcher:
    """Hands out batches on `device`, and copies the next one on another stream.

    `batches` yields tuples of host tensors, page-locked where the copies are to overlap. `pieces` consecutive tuples
    make one batch, joined along dimension 0. A batch must be used on the stream that is current when it is taken; its
    memory is used again after that work, when nothing refers to the batch any more. On a CPU a copy is over when it
    returns.
    """

    def __init__(self, batches: Iterator[Tensors], device: torch.device, pieces: int = 1) -> None:
        self._batches, self._device, self._pieces = batches, device, pieces
        self._next: Tensors | None = None
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # cuda only
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # cuda only

    def take(self, ahead: bool = True) -> Tensors:
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

    def close(self) -> None:
        """Waits for the copies in flight and releases the batches."""
        if self._stream is not None:
            self._stream.synchronize()  # cuda only
        self._next, self._batches = None, iter(())

    def _joined(self, parts: Tensors) -> Tensor:
        joined = torch.empty((len(parts), *parts[0].shape), dtype=parts[0].dtype, device=self._device)
        for place, part in zip(joined, parts, strict=True):
            # The allocator of page-locked memory keeps the source until this copy is over, whoever drops it.
            place.copy_(part, non_blocking=True)
        return joined.flatten(0, 1)

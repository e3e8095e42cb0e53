"""Batches of a DataLoader, by this process or by workers, which end with their side: none is left, and none is awaited.

Forked workers begin in milliseconds and share the data of this process, and they use no device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from workloads.parts.stages import stage

STUCK_S = 30.0  # a batch takes a worker a second at most: a worker silent for this long has failed
DYING_S = 1.0
ENDING_S = 5.0  # for a worker that was ordered to end
_Batch = TypeVar("_Batch")


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
        self._waits_ms: list[float] = []
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
        """The times that each batch took since the last call, which its caller waited for or prepared it."""
        taken, self._waits_ms = self._waits_ms, []
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

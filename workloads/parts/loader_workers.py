"""The worker processes of a DataLoader's iterator: their list, and their end without leftovers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

DYING_S = 1.0
ENDING_S = 5.0  # for a worker that was ordered to end


def workers_of(batches: Iterator[Any]) -> Sequence[BaseProcess]:
    """The workers of the iterator; empty for an iterator that prepares its batches in this process."""
    workers: Sequence[BaseProcess] = getattr(batches, "_workers", ())
    return workers


def dead_workers(batches: Iterator[Any]) -> list[BaseProcess]:
    """Workers that have ended, or end within a second: their connections break before the processes are gone.

    Waiting for them also takes the signal of their death, so that it interrupts nothing later.
    """
    ended = wait([worker.sentinel for worker in workers_of(batches)], DYING_S)
    dead = [worker for worker in workers_of(batches) if worker.sentinel in ended]
    for worker in dead:
        worker.join()
    return dead


def end_workers(batches: Iterator[Any]) -> None:
    """Ends the workers and waits for them.

    Garbage collection alone would leave them alive after their side: an exception's traceback keeps the iterator.
    """
    workers = workers_of(batches)
    if not workers:
        return
    # A signal handler raises a worker's death once, anywhere in the program: possibly here.
    with suppress(RuntimeError):
        batches._shutdown_workers()  # type: ignore[attr-defined]
    for worker in workers:
        worker.terminate()
        worker.join(ENDING_S)

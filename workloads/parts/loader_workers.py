"""The worker processes of a DataLoader's iterator: who they are, and their end without leaving one behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

DYING_S = 1.0
ENDING_S = 5.0  # a worker that was told to end


def workers_of(batches: Iterator[Any]) -> Sequence[BaseProcess]:
    """None for an iterator that prepares its batches in this process."""
    workers: Sequence[BaseProcess] = getattr(batches, "_workers", ())
    return workers


def dead_workers(batches: Iterator[Any]) -> list[BaseProcess]:
    """Those that have ended, or do so within a second: their connections break before they are gone.

    Once they are waited for, the signal of their death has done what it does: nothing later is interrupted by it.
    """
    ended = wait([worker.sentinel for worker in workers_of(batches)], DYING_S)
    dead = [worker for worker in workers_of(batches) if worker.sentinel in ended]
    for worker in dead:
        worker.join()
    return dead


def end_workers(batches: Iterator[Any]) -> None:
    """Ends the workers and waits for them.

    Left to garbage collection they would outlive their side: an exception's traceback keeps the iterator alive.
    """
    workers = workers_of(batches)
    if not workers:
        return
    # That a worker has died is raised once, by a signal handler, wherever the program is: here it may be.
    with suppress(RuntimeError):
        batches._shutdown_workers()  # type: ignore[attr-defined]
    for worker in workers:
        worker.terminate()
        worker.join(ENDING_S)

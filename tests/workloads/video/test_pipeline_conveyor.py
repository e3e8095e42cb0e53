"""Stages work at the same time, on a bounded number of batches, and a settled conveyor holds as many as before."""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from tests.support.patience import HANGS_S
from workloads.video.pipeline import QUEUED, Conveyor


def conveyor(source: Callable[[], int | None], *works: Callable[[int], int]) -> Conveyor:
    return Conveyor([("source", source, nullcontext), *((f"{work}", work, nullcontext) for work in works)])


def numbers(count: int) -> Callable[[], int | None]:
    left = iter(range(count))
    return lambda: next(left, None)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("video-")]


def test_stages_work_at_the_same_time() -> None:
    """The second stage holds batch 0 until the first one has done batch 1."""
    together = threading.Semaphore(0)
    seen = []

    def announce(batch: int) -> int:
        together.release()
        return batch

    def expect(batch: int) -> int:
        seen.append(all(together.acquire(timeout=HANGS_S) for _ in range(2)) if batch == 0 else True)
        return batch

    line = conveyor(numbers(4), announce, expect)
    assert [line.take() for _ in range(5)] == [0, 1, 2, 3, None]
    line.close()
    assert seen == [True] * 4


def test_between_two_settled_moments_as_much_is_worked_on_as_is_taken() -> None:
    worked: list[int] = []

    def work(batch: int) -> int:
        time.sleep(0.002)
        worked.append(batch)
        return batch

    line = conveyor(numbers(40), work)
    line.settle()
    full = len(worked)
    assert full == QUEUED + 1  # in the last queue, and in the hands of the stage
    for taken in (3, 1):
        before = len(worked)
        for _ in range(taken):
            line.take()
        line.settle()
        assert len(worked) - before == taken
    while line.take() is not None:
        pass
    line.settle()
    assert len(worked) == 40
    line.close()
    line.settle()


def test_closing_ends_threads_that_wait() -> None:
    line = conveyor(lambda: 1, lambda x: x)
    line.take()
    line.close()
    assert threads() == []
    with pytest.raises(ValueError, match="the conveyor is closed: make another one"):
        line.take()

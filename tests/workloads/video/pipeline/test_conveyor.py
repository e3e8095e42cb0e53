"""Batches pass all stations in order, at once and bounded; an error ends every thread and is the caller's."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.patience import HANGS_S, wait_until
from workloads.video.pipeline.conveyor import QUEUED, Conveyor, ShortQueue, Station


def numbers(count: int) -> Callable[[], int | None]:
    left = iter(range(count))
    return lambda: next(left, None)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("video-")]


def test_every_batch_comes_out_once_and_in_order_and_then_none() -> None:
    line: Conveyor[int] = Conveyor(numbers(50), [Station("double", lambda x: 2 * x), Station("add", lambda x: x + 1)])
    taken = [line.take() for _ in range(53)]
    assert taken == [*range(1, 101, 2), None, None, None]
    line.close()
    assert threads() == []


def test_stations_work_at_the_same_time() -> None:
    """The second station holds batch 0 until the first one has done batch 1."""
    together = threading.Semaphore(0)
    seen = []

    def announce(batch: int) -> int:
        together.release()
        return batch

    def expect(batch: int) -> int:
        seen.append(all(together.acquire(timeout=HANGS_S) for _ in range(2)) if batch == 0 else True)
        return batch

    line: Conveyor[int] = Conveyor(numbers(4), [Station("first", announce), Station("second", expect)])
    assert [line.take() for _ in range(5)] == [0, 1, 2, 3, None]
    line.close()
    assert seen == [True] * 4


def test_no_more_is_on_its_way_than_queues_and_threads_hold() -> None:
    made = []
    most = 2 * QUEUED + 2

    def source() -> int:
        made.append(len(made))
        return len(made) - 1

    line: Conveyor[int] = Conveyor(source, [Station("pass", lambda x: x)])
    assert line.take() == 0
    wait_until(lambda: len(made) >= most + 1)
    time.sleep(0.05)
    assert len(made) == most + 1
    line.close()


def test_between_two_settled_moments_as_much_is_worked_on_as_is_taken() -> None:
    worked: list[int] = []

    def work(batch: int) -> int:
        time.sleep(0.002)
        worked.append(batch)
        return batch

    line: Conveyor[int] = Conveyor(numbers(40), [Station("work", work)])
    line.settle()
    full = len(worked)
    assert full == QUEUED + 1  # in the last queue, and in the hands of the station
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


def test_settling_does_not_wait_for_what_has_failed() -> None:
    def fails() -> int:
        raise OSError("the source is gone")

    line: Conveyor[int] = Conveyor(fails, [Station("pass", lambda x: x)])
    line.settle()
    with pytest.raises(OSError, match="the source is gone"):
        line.take()


@pytest.mark.parametrize("where", ["source", "first", "last"])
def test_what_a_thread_raises_ends_all_and_is_raised_to_the_caller(where: str) -> None:
    def work(name: str) -> Callable[[int], int]:
        def step(batch: int) -> int:
            if name == where and batch == 3:
                raise OSError(f"no room in {name}")
            return batch

        return step

    count = iter(range(100))
    line: Conveyor[int] = Conveyor(
        lambda: work("source")(next(count)), [Station("first", work("first")), Station("last", work("last"))]
    )
    with pytest.raises(OSError, match=f"no room in {where}"):
        list(iter(line.take, None))
    wait_until(lambda: not threads())
    with pytest.raises(OSError, match="no room"):
        line.take()


def test_of_several_errors_the_first_is_told() -> None:
    calls, failing = iter(range(2)), threading.Event()

    def fails(batch: int) -> int:
        failing.set()
        raise ValueError("the first")

    def fails_later() -> int:
        if next(calls) == 0:
            return 1
        failing.wait(HANGS_S)
        while "video-fails" in threads():
            time.sleep(0.002)
        raise ValueError("the second")

    line: Conveyor[int] = Conveyor(fails_later, [Station("fails", fails)])
    with pytest.raises(ValueError, match="the first"):
        line.take()
    line.close()


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_closing_ends_threads_that_wait(taken: int) -> None:
    line: Conveyor[int] = Conveyor(lambda: 1, [Station("pass", lambda x: x)])
    for _ in range(taken):
        line.take()
    line.close()
    line.close()
    assert threads() == []
    with pytest.raises(ValueError, match="the conveyor is closed: make another one"):
        line.take()


def test_a_station_works_within_its_surroundings() -> None:
    inside: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        inside.append(threading.current_thread().name)
        yield
        inside.append("left")

    line: Conveyor[int] = Conveyor(numbers(2), [Station("encode", lambda x: x, around)])
    assert [line.take() for _ in range(3)] == [0, 1, None]
    line.close()
    assert inside == ["video-encode", "left"]


def test_a_queue_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="a queue of 0 items carries nothing: give at least 1"):
        ShortQueue[int](0, threading.Condition())

"""A conveyor: batches through stations that all work at once, each in a thread, with short queues between them.

Sequential time is the sum of the stations, a conveyor's is their maximum. The queues bound the batches in flight; every
thread blocks while it has no work.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

_Item = TypeVar("_Item")
_Batch = TypeVar("_Batch")
QUEUED = 2  # batches between two stations: one to take, one to finish meanwhile


class QueueClosedError(Exception):
    """A queue is closed: no item passes any more."""


class ShortQueue(Generic[_Item]):
    """Carries items from one thread to another in order, at most `length` at a time; closing it wakes both.

    Several queues may share `changed`, so that one thread can wait for a change of any of them.
    """

    def __init__(self, length: int, changed: threading.Condition) -> None:
        if length < 1:
            raise ValueError(f"a queue of {length} items carries nothing: give at least 1")
        self.overfull = False  # a thread has an item and no room for it
        self._length, self._items, self._closed = length, deque[_Item](), False
        self._changed = changed

    def put(self, item: _Item) -> None:
        """Waits for room. Raises QueueClosedError."""
        with self._changed:
            self.overfull = len(self._items) >= self._length
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._length)
            self.overfull = False
            self._stop_if_closed()
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> _Item:
        """Waits for an item. Raises QueueClosedError, also where items are left, which are then not wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items))
            self._stop_if_closed()
            item = self._items.popleft()
            self.overfull = False  # the waiting thread has room now, even if it does not run yet
            self._changed.notify_all()
            return item

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def _stop_if_closed(self) -> None:
        if self._closed:
            raise QueueClosedError


@dataclass(frozen=True)
class Station:
    """The work of one thread on each batch. The thread enters `around`: its CUDA stream, for instance."""

    name: str
    work: Callable[[Any], Any]
    around: Callable[[], AbstractContextManager[object]] = nullcontext


class Conveyor(Generic[_Batch]):
    """`source()` gives batches, then None; each passes all stations, in order, and is taken at the end.

    An error of a station or the source ends all threads, and is raised by `take`; of several errors, the first one.
    """

    def __init__(
        self,
        source: Callable[[], object | None],
        stations: Sequence[Station],
        around_source: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._changed = threading.Condition()
        self._queues: list[ShortQueue[Any]] = [ShortQueue(QUEUED, self._changed) for _ in range(len(stations) + 1)]
        self._failure: BaseException | None = None
        self._running = len(self._queues)
        self._ended = False
        first = threading.Thread(target=self._feed, args=(source, around_source), name="video-source", daemon=True)
        others = [
            threading.Thread(target=self._run, args=(number, station), name=f"video-{station.name}", daemon=True)
            for number, station in enumerate(stations)
        ]
        self._threads = [first, *others]
        for thread in self._threads:
            thread.start()

    def take(self) -> _Batch | None:
        """The next batch from the last station, None after the last one."""
        if self._ended:
            return None
        try:
            batch = self._queues[-1].get()
        except QueueClosedError:
            self.close()
            if self._failure is not None:
                raise self._failure from None
            raise ValueError("the conveyor is closed: make another one") from None
        self._ended = batch is None
        return batch  # type: ignore[no-any-return]

    def settle(self) -> None:
        """Waits until every thread has ended or has a finished batch and no room for it: no batch is being processed.

        Between two such moments exactly as many batches were processed as were taken. The next `take` raises the
        error of a failed station.
        """
        with self._changed:
            self._changed.wait_for(lambda: sum(queue.overfull for queue in self._queues) >= self._running)

    def close(self) -> None:
        """Ends and joins all threads, each after the batch it works on; may be called again."""
        for queue in self._queues:
            queue.close()
        for thread in self._threads:
            thread.join()

    def _feed(self, source: Callable[[], object | None], around: Callable[[], AbstractContextManager[object]]) -> None:
        with self._ending(), around():
            batch: object | None = self
            while batch is not None:
                batch = source()
                self._queues[0].put(batch)

    def _run(self, number: int, station: Station) -> None:
        before, behind = self._queues[number], self._queues[number + 1]
        with self._ending(), station.around():
            while (batch := before.get()) is not None:
                behind.put(station.work(batch))
            behind.put(None)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Records any error of a thread, other than closed queues, and the end of the thread."""
        failure: BaseException | None = None
        try:
            yield
        except QueueClosedError:
            return
        except BaseException as error:
            failure = error
        finally:
            self._end(failure)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._running -= 1
            self._failure = self._failure or error
            self._changed.notify_all()
        if error is not None:
            for queue in self._queues:
                queue.close()

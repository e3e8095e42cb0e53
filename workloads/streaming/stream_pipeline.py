"""Blocks through a ring of buffers: reader threads in front of the device, consumer threads behind it, all at once.

Sequential time is the sum of the stages, pipelined time their maximum. The ring bounds what is on its way; every thread
blocks while it has nothing to do. Readers share the first block that is not read yet, in pieces: the device then waits
for a piece where a step begins, and never for the last reader of a whole block where it ends.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from workloads.parts.stages import stage

_Slot = TypeVar("_Slot")


@dataclass(frozen=True)
class Stages(Generic[_Slot]):
    """What becomes of a block in its slot.

    `read(slot, number)` runs on reader threads, for each of the block's pieces: the numbers of the `pieces` that block
    n has begin with n x `pieces`. `submit(slot)` runs on the caller's, in order, and may return before the device is
    done. `consume(slot)` runs on a consumer thread, waits for the device and returns what is wanted.
    """

    read: Callable[[_Slot, int], None]
    submit: Callable[[_Slot], None]
    consume: Callable[[_Slot], Tensor]
    pieces: int = 1


class _Place:
    """Whose turn it is to use one slot: turns are over in the order in which they were given out."""

    def __init__(self) -> None:
        self._given, self._over, self._closed = 0, 0, False
        self._changed = threading.Condition()

    def next_turn(self) -> int:
        self._given += 1
        return self._given - 1

    def wait_for(self, turn: int) -> bool:
        """Until all earlier turns are over; False when the place was closed.

        Whoever happens to find the slot free must not take it: with several readers, a later block could get the slot
        of an earlier one, which would then never be read while everybody waits for it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._over == turn)
            return not self._closed

    def end_turn(self) -> None:
        with self._changed:
            self._over += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Pipeline(Generic[_Slot]):
    """A ring of slots, `readers` reader threads and `consumers` consumer threads; 0 consumers: the caller consumes.

    An exception in any stage closes the pipeline and is raised to the caller. Raises ValueError without a slot or
    without a reader.
    """

    def __init__(self, slots: Sequence[_Slot], stages: Stages[_Slot], readers: int, consumers: int) -> None:
        if not slots or readers < 1:
            raise ValueError(f"{len(slots)} buffers and {readers} readers carry nothing: give at least 1 of each")
        self.slots = tuple(slots)
        self.most_in_flight = 0  # slots that held a block at the same time
        self._stages = stages
        self._places = [_Place() for _ in slots]
        self._next = itertools.cycle(range(len(slots)))
        self._in_flight, self._counting = 0, threading.Lock()
        self._failure: BaseException | None = None  # of a consumer, which the caller hears of later
        self._readers = ThreadPoolExecutor(readers, "stream-reader")
        self._consumers = ThreadPoolExecutor(consumers, "stream-consumer") if consumers else None

    def stream(self, numbers: Sequence[int]) -> list[Future[Tensor]]:
        """Reads and submits these blocks in order; what `consume` returns comes later, in the same order.

        Returns when the last one is submitted. Raises what reading or submitting raises; all threads have ended then.
        """
        with self.closed_on_error():
            asked, passed_on = map(self._ask, numbers), []
            # All at once, asking would keep the readers from Python's lock just when the device has nothing to do.
            ahead = deque(itertools.islice(asked, len(self.slots)))
            while ahead:
                passed_on.append(self._pass_on(*ahead.popleft()))
                ahead.extend(itertools.islice(asked, 1))
            return passed_on

    def close(self) -> None:
        """Ends and joins all threads; what is not read or consumed by then is dropped. May be called again."""
        self._close_places()
        for threads in (self._readers, self._consumers):
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Whatever is raised inside, all threads have ended before it is raised here; of several, it is the first."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, CancelledError) and self._failure is not None:
                raise self._failure from None
            raise

    def _close_places(self) -> None:
        """Wakes the readers that wait for one."""
        for place in self._places:
            place.close()

    def _ask(self, number: int) -> tuple[int, list[Future[None]]]:
        place, pieces = next(self._next), self._stages.pieces
        turn, first = self._places[place].next_turn(), number * pieces
        return place, [self._readers.submit(self._read, place, turn, first + piece) for piece in range(pieces)]

    def _read(self, place: int, turn: int, piece: int) -> None:
        if not self._places[place].wait_for(turn):
            raise CancelledError(f"piece {piece} is not read: the pipeline was closed")
        if piece % self._stages.pieces == 0:
            self._count(1)
        with stage("read"):
            self._stages.read(self.slots[place], piece)

    def _pass_on(self, place: int, reads: Sequence[Future[None]]) -> Future[Tensor]:
        for read in reads:
            read.result()
        self._stages.submit(self.slots[place])
        if self._consumers is not None:
            return self._consumers.submit(self._consume, place)
        consumed: Future[Tensor] = Future()
        consumed.set_result(self._consume(place))
        return consumed

    def _consume(self, place: int) -> Tensor:
        try:
            with stage("check", 1):
                wanted = self._stages.consume(self.slots[place])
        except BaseException as error:
            self._failure = self._failure or error
            self._close_places()  # the caller may be waiting for the next block of this slot
            raise
        self._count(-1)
        self._places[place].end_turn()
        return wanted

    def _count(self, change: int) -> None:
        with self._counting:
            self._in_flight += change
            self.most_in_flight = max(self.most_in_flight, self._in_flight)

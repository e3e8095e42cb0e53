"""A pipeline of blocks through a ring of buffers: reader threads before the device, consumer threads after it.

Sequential time is the sum of the stages, pipelined time their maximum. The ring bounds the blocks in flight; every
thread blocks while it has no work. Readers share the first block that is not read yet, in pieces: the device then waits
for a piece at the beginning of a step, and never for the last reader of a whole block at its end.
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
    """The stages of a block in its slot.

    `read(slot, number)` runs on reader threads, for each of the block's pieces: the numbers of the `pieces` of block n
    begin with n x `pieces`. `submit(slot)` runs on the caller's thread, in order, and may return before the device is
    done. `consume(slot)` runs on a consumer thread, waits for the device and returns the wanted sums.
    """

    read: Callable[[_Slot, int], None]
    submit: Callable[[_Slot], None]
    consume: Callable[[_Slot], Tensor]
    pieces: int = 1


class _Place:
    """The turns of one slot, which are over in the order in which they were given out."""

    def __init__(self) -> None:
        self._given, self._over, self._closed = 0, 0, False
        self._changed = threading.Condition()

    def next_turn(self) -> int:
        self._given += 1
        return self._given - 1

    def wait_for(self, turn: int) -> bool:
        """Waits until all earlier turns are over; returns False when the place was closed.

        A thread that merely finds the slot free must not take it: with several readers, a later block could get the
        slot of an earlier block, which would then never be read while all threads wait for it.
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
        self.most_in_flight = 0  # slots in use by blocks at the same time
        self._stages = stages
        self._places = [_Place() for _ in slots]
        self._next = itertools.cycle(range(len(slots)))
        self._in_flight, self._counting = 0, threading.Lock()
        self._failure: BaseException | None = None  # of a consumer, raised later in the caller
        self._readers = ThreadPoolExecutor(readers, "stream-reader")
        self._consumers = ThreadPoolExecutor(consumers, "stream-consumer") if consumers else None

    def stream(self, numbers: Sequence[int]) -> list[Future[Tensor]]:
        """Reads and submits these blocks in order; returns the futures of the `consume` results, in the same order.

        Returns when the last block is submitted. Raises the errors of reading and submitting; all threads have ended
        then.
        """
        with self.closed_on_error():
            asked, passed_on = map(self._ask, numbers), []
            # Requests for all blocks at once would keep the readers from Python's lock just when the device has no
            # work.
            ahead = deque(itertools.islice(asked, len(self.slots)))
            while ahead:
                passed_on.append(self._pass_on(*ahead.popleft()))
                ahead.extend(itertools.islice(asked, 1))
            return passed_on

    def close(self) -> None:
        """Ends and joins all threads; blocks that are not read or consumed by then are dropped. May be called again."""
        self._close_places()
        for threads in (self._readers, self._consumers):
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Ends all threads before an error inside is raised; of several errors, the first one is raised."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, CancelledError) and self._failure is not None:
                raise self._failure from None
            raise

    def _close_places(self) -> None:
        """Wakes the readers that wait for a place."""
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

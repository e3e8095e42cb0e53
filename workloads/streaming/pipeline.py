"""A pipeline of blocks through a ring of buffers: reader threads before the device, consumer threads after it.

Sequential time is the sum of the stages, pipelined time their maximum. The ring bounds the blocks in flight: who has
consumed a block has the next block of its slot read. So no thread waits for a slot. Readers share the first block that
is not read yet, in pieces: the device then waits for a piece at the beginning of a step, and never for the last reader
of a whole block at its end.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

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


@dataclass(frozen=True)
class _Block:
    """A block on its way through the slot at `place`: its pieces are read, and later its sums are there."""

    place: int
    first_piece: int
    reads: Sequence[Future[None]]
    sums: Future[Tensor]


class Pipeline(Generic[_Slot]):
    """A ring of slots, `readers` reader threads and `consumers` consumer threads; 0 consumers: the caller consumes.

    An exception in any stage closes the pipeline and is raised to the caller.
    """

    def __init__(self, slots: Sequence[_Slot], stages: Stages[_Slot], readers: int, consumers: int) -> None:
        self.slots = tuple(slots)
        self.most_in_flight = 0  # slots in use by blocks at the same time
        self._stages = stages
        self._last: list[Future[Any]] = [Future() for _ in slots]  # the sums of the last block of each slot
        for none in self._last:
            none.set_result(None)
        self._next = itertools.cycle(range(len(slots)))
        self._in_flight, self._counting = 0, threading.Lock()
        self._closed = False
        self._readers = ThreadPoolExecutor(readers, "stream-reader")
        self._consumers = ThreadPoolExecutor(consumers, "stream-consumer") if consumers else None

    def stream(self, numbers: Sequence[int]) -> list[Future[Tensor]]:
        """Reads and submits these blocks in order; returns the futures of the `consume` results, in the same order.

        Returns when the last block is submitted. Raises the errors of reading and submitting; all threads have ended
        then. Raises ValueError where the pipeline is closed.
        """
        if self._closed:
            raise ValueError("the pipeline is closed: make another one")
        with self.closed_on_error():
            asked, passed_on = map(self._ask, numbers), []
            # Requests for all blocks at once would keep the readers from Python's lock just when the device has no
            # work.
            ahead = deque(itertools.islice(asked, len(self.slots)))
            while ahead:
                passed_on.append(self._pass_on(ahead.popleft()))
                ahead.extend(itertools.islice(asked, 1))
            return passed_on

    def close(self) -> None:
        """Ends and joins all threads; blocks that are not read or consumed by then are dropped. May be called again."""
        self._closed = True
        for threads in (self._readers, self._consumers):
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Ends all threads before an error inside is raised."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _ask(self, number: int) -> _Block:
        """Asks for a block, which is read as soon as the last block of its slot is consumed."""
        pieces = self._stages.pieces
        block = _Block(next(self._next), number * pieces, [Future() for _ in range(pieces)], Future())
        last, self._last[block.place] = self._last[block.place], block.sums
        last.add_done_callback(partial(self._begin, block))
        return block

    def _begin(self, block: _Block, last: Future[Any]) -> None:
        """Has the pieces of a block read; an error of the last block of its slot becomes an error of its reads."""
        try:
            last.result()
            for number, read in enumerate(block.reads, block.first_piece):
                self._readers.submit(_resolve, read, "read", self._read, block, number)
        except BaseException as error:  # also of a pipeline that is closed
            if not block.reads[0].done():
                block.reads[0].set_exception(error)

    def _read(self, block: _Block, number: int) -> None:
        if number == block.first_piece:
            self._count(1)
        self._stages.read(self.slots[block.place], number)

    def _pass_on(self, block: _Block) -> Future[Tensor]:
        for read in block.reads:
            read.result()
        self._stages.submit(self.slots[block.place])
        if self._consumers is None:
            self._consume(block)
        else:
            # A block that `close()` drops has cancelled sums: whoever waits for them would wait for ever.
            self._consumers.submit(self._consume, block).add_done_callback(
                lambda task: block.sums.cancel() if task.cancelled() else None
            )
        return block.sums

    def _consume(self, block: _Block) -> None:
        _resolve(block.sums, "check", self._check, block)

    def _check(self, block: _Block) -> Tensor:
        sums = self._stages.consume(self.slots[block.place])
        self._count(-1)
        return sums

    def _count(self, change: int) -> None:
        with self._counting:
            self._in_flight += change
            self.most_in_flight = max(self.most_in_flight, self._in_flight)


def _resolve(future: Future[Any], name: str, work: Callable[..., Any], *arguments: Any) -> None:
    """Gives the future the result of the work, or its error."""
    try:
        with stage(name):
            result = work(*arguments)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)

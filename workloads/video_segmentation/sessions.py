"""Frames of a clip from several decoders at once, in order.

The clip is split where decoding can begin. Each decoder has every n-th segment and decodes ahead into slots of its own,
until these are full; whoever reads takes the segments in order. So no more is on its way than there are slots, and
nobody can wait for a slot that a later segment holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, cycle, islice, pairwise
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from workloads.video_segmentation.decoding import CLOSED, missing_frames
from workloads.video_segmentation.video_file import VideoError, VideoInfo

_Slot = TypeVar("_Slot")


@dataclass(frozen=True)
class Segment:
    """Frames `first` to `stop` - 1 of a clip, which need none of the others to be decoded."""

    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first


def segments(info: VideoInfo) -> tuple[Segment, ...]:
    """The whole clip, split at its keyframes."""
    starts = sorted({0, *info.keyframes})
    return tuple(Segment(first, stop) for first, stop in pairwise([*starts, info.frames]))


class SegmentReader(Protocol[_Slot]):
    """A decoder of its own, made and used by one thread.

    `slots` hold a frame each, and outlive the reader. `read` decodes a segment, every frame into the slot that
    `free_slot()` returns, and yields these slots in order; frames that a damaged file lacks are left out.
    """

    @property
    def slots(self) -> Sequence[_Slot]: ...

    def read(self, segment: Segment, free_slot: Callable[[], _Slot]) -> Iterator[_Slot]: ...

    def close(self) -> None: ...


class _StoppedError(Exception):
    """A session is to end."""


class _Session(Generic[_Slot]):
    """One reader's slots on their way between it and whoever uses them; None in either direction says that it is over.

    Queues that are bounded by how many slots there are need no other bound.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._free: SimpleQueue[_Slot | None] = SimpleQueue()
        self._ready: SimpleQueue[_Slot | None] = SimpleQueue()
        self._stopped = self._ended = False
        self._changed = changed
        self._to_fill: int | None = None  # slots that are free or being filled; None before there are any

    @property
    def is_full(self) -> bool:
        """Whether every slot holds a frame that nobody has used yet, or nothing more will come."""
        return self._ended or self._to_fill == 0

    def free(self, slot: _Slot) -> None:
        self._count(1)
        self._free.put(slot)

    def free_slot(self) -> _Slot:
        slot = self._free.get()
        if slot is None or self._stopped:
            raise _StoppedError
        return slot

    def ready(self, slot: _Slot | None) -> None:
        self._ready.put(slot)
        self._count(-1)

    def ready_slot(self) -> _Slot | None:
        return self._ready.get()

    def stop(self) -> None:
        with self._changed:
            self._stopped = self._ended = True
            self._changed.notify_all()
        self._free.put(None)
        self._ready.put(None)

    def end(self) -> None:
        """Nothing more will be filled."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _count(self, change: int) -> None:
        with self._changed:
            self._to_fill = (self._to_fill or 0) + change
            self._changed.notify_all()


class Sessions(Generic[_Slot]):
    """A clip from several decoders at once, in order, over and over where `loop` is True.

    As many threads decode as `sessions` says, at most one for each segment. Each of them calls `make_reader`. What one
    of them raises ends all, and comes out of `frames`; of several, it is the first. Raises ValueError for 0 sessions.
    """

    def __init__(
        self, info: VideoInfo, make_reader: Callable[[], SegmentReader[_Slot]], sessions: int, loop: bool = False
    ) -> None:
        if sessions < 1:
            raise ValueError(f"{sessions} sessions decode nothing: give at least 1")
        self._info, self._segments, self._make_reader, self._loop = info, segments(info), make_reader, loop
        self._changed = threading.Condition()
        self._sessions: list[_Session[_Slot]] = [
            _Session(self._changed) for _ in range(min(sessions, len(self._segments)))
        ]
        self._slots = self._in_order()
        self._shortage: VideoError | None = None
        self._failure: BaseException | None = None
        self._failing = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"video-session-{number}", daemon=True)
            for number in range(len(self._sessions))
        ]
        for thread in self._threads:
            thread.start()

    def frames(self, frames: int) -> Iterator[_Slot]:
        """Up to so many slots with the next frames; each of them is free again when the next one is asked for.

        None at all comes after the end. Raises at once what a thread raised, ValueError after `close`, and VideoError
        where the clip ended too early: in the call after the one that gave its last frames.
        """
        given = 0
        for slot in islice(self._slots, frames):
            yield slot
            given += 1
        if self._failure is not None:
            self._join()
            raise self._failure
        if self._shortage is not None and not given:
            self._join()
            raise self._shortage

    def settle(self) -> None:
        """Waits until every session is as far ahead as it can be.

        Between two such moments exactly as many frames are decoded as are taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: all(session.is_full for session in self._sessions))

    def close(self) -> None:
        """Ends and joins all threads, each after the frame that it works on; may be called again."""
        self._fail(ValueError(CLOSED))
        self._join()

    def _turns(self, first: int, step: int) -> Iterator[Segment]:
        """Every `step`-th segment, in rounds where the clip is to be decoded over and over."""
        numbers = count(first, step) if self._loop else range(first, len(self._segments), step)
        return (self._segments[number % len(self._segments)] for number in numbers)

    def _in_order(self) -> Iterator[_Slot]:
        """Ends at the end of the clip, where it ended too early, and where a thread failed."""
        for segment, session in zip(self._turns(0, 1), cycle(self._sessions), strict=False):
            for number in range(segment.first, segment.stop):
                slot = session.ready_slot()
                if self._failure is not None:
                    return
                if slot is None:
                    self._shortage = missing_frames(self._info, number)
                    self._stop()
                    return
                yield slot
                session.free(slot)

    def _run(self, number: int) -> None:
        try:
            self._run_session(number)
        finally:
            self._sessions[number].end()

    def _run_session(self, number: int) -> None:
        with self._told():
            reader = self._make_reader()
            with self._told():
                self._decode(reader, self._sessions[number], self._turns(number, len(self._sessions)))
            reader.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except _StoppedError:
            pass
        except BaseException as error:
            self._fail(error)

    def _decode(self, reader: SegmentReader[_Slot], session: _Session[_Slot], turns: Iterable[Segment]) -> None:
        for slot in reader.slots:
            session.free(slot)  # all before the first is filled, or the session would seem full
        for segment in turns:
            decoded = 0
            for slot in reader.read(segment, session.free_slot):
                session.ready(slot)
                decoded += 1
            if decoded < len(segment):
                session.ready(None)
                return

    def _fail(self, error: BaseException) -> None:
        with self._failing:
            self._failure = self._failure or error
        self._stop()

    def _stop(self) -> None:
        for session in self._sessions:
            session.stop()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

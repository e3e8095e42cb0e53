"""Sessions: several decoders at once that give the frames of a clip in order.

The clip is split where decoding can begin. Each decoder has every n-th segment and decodes ahead into slots of its own,
until these are full; the reader takes the segments in order. So the slots bound the frames in flight, and no thread can
wait for a slot that a later segment occupies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count, cycle, pairwise
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from workloads.video.clip.video_file import VideoError, VideoInfo
from workloads.video.decode.decoding import CLOSED, missing_frames

_Slot = TypeVar("_Slot")


def segments(info: VideoInfo) -> tuple[range, ...]:
    """The whole clip, split at its keyframes: the numbers of frames that need none of the others to be decoded."""
    starts = sorted({0, *info.keyframes})
    return tuple(range(first, stop) for first, stop in pairwise([*starts, info.frames]))


class SegmentReader(Protocol[_Slot]):
    """A decoder of its own, built and used by one thread.

    `slots` have room for a frame each, and outlive the reader. `read` decodes a segment, every frame into the slot that
    `free_slot()` returns, and yields these slots in order; frames that a damaged file lacks are left out.
    """

    @property
    def slots(self) -> Sequence[_Slot]: ...

    def read(self, segment: range, free_slot: Callable[[], _Slot]) -> Iterator[_Slot]: ...

    def close(self) -> None: ...


class _StoppedError(Exception):
    """An exception that ends a session."""


class _Room:
    """The number of frames that all sessions together may have ahead: `spare` fewer than there are slots.

    So every session with room replaces a few taken frames, and not only the session whose slots they were in: a caller
    that waits until as much is decoded as was taken waits for several engines, and not for one.
    """

    def __init__(self, spare: int) -> None:
        self.spare = self._withheld = spare
        self.left = threading.Semaphore(0)
        self._changed = threading.Condition()
        self._watchers = 0

    def add(self, slots: int) -> None:
        with self._changed:
            withheld = min(self._withheld, slots)
            self._withheld -= withheld
        if slots > withheld:
            self.left.release(slots - withheld)

    def tell(self) -> None:
        """Wakes who waits; without one no lock is taken, for which all sessions would compete around every frame."""
        if self._watchers:
            with self._changed:
                self._changed.notify_all()

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Waits until `holds()` is true, which is checked at every change."""
        with self._changed:
            self._watchers += 1
            try:
                self._changed.wait_for(holds)
            finally:
                self._watchers -= 1


class _Session(Generic[_Slot]):
    """One reader's slots on their way between it and the consumer; None in either direction is the end.

    The number of slots bounds the queues, which need no other bound. Each count is raised by one thread.
    """

    def __init__(self, room: _Room) -> None:
        self._free: SimpleQueue[_Slot | None] = SimpleQueue()
        self._ready: SimpleQueue[_Slot | None] = SimpleQueue()
        self._room = room
        self._stopped = self.ended = False
        self.slots: int | None = None  # before there are any
        self._filled = self._freed = 0

    @property
    def held(self) -> int:
        """The number of slots with a frame that is still wanted."""
        return self._filled - self._freed

    def begin(self, slots: Sequence[_Slot]) -> None:
        for slot in slots:
            self._free.put(slot)
        self.slots = len(slots)
        self._room.add(len(slots))

    def free(self, slots: Sequence[_Slot]) -> None:
        self._freed += len(slots)
        for slot in slots:
            self._free.put(slot)
        self._room.left.release(len(slots))

    def free_slot(self) -> _Slot:
        slot = self._free.get()
        if slot is not None:
            self._room.left.acquire()  # with a slot in hand: a waiting thread must not occupy the room of others
        if slot is None or self._stopped:
            raise _StoppedError
        return slot

    def ready(self, slot: _Slot | None) -> None:
        if slot is not None:
            self._filled += 1
        self._ready.put(slot)
        self._room.tell()

    def ready_slots(self, most: int) -> list[_Slot]:
        """The next slot, and those after it that are ready; empty at the end."""
        slots: list[_Slot] = []
        slot = self._ready.get()
        while slot is not None:
            slots.append(slot)
            if len(slots) == most:
                return slots
            try:
                slot = self._ready.get_nowait()
            except Empty:
                return slots
        self._ready.put(None)  # for the next request
        return slots

    def stop(self) -> None:
        self._stopped = True
        self._free.put(None)
        self._ready.put(None)
        self._room.left.release()
        self.end()

    def end(self) -> None:
        """Ends the session's output."""
        self.ended = True
        self._room.tell()


class Sessions(Generic[_Slot]):
    """The frames of a clip from several decoders at once, in order, over and over where `loop` is True.

    `sessions` threads decode, at most one for each segment. Each of them calls `make_reader`. An error in one of them
    ends all, and is raised by `runs`; of several errors, the first one. Of all slots, `spare` stay empty: fewer than a
    reader has, or the session whose turn it is could wait forever.
    """

    def __init__(
        self,
        info: VideoInfo,
        make_reader: Callable[[], SegmentReader[_Slot]],
        sessions: int,
        loop: bool = False,
        spare: int = 0,
    ) -> None:
        self.info, self._segments, self._make_reader, self._loop = info, segments(info), make_reader, loop
        self._room = _Room(spare)
        self._sessions = [_Session[_Slot](self._room) for _ in range(min(sessions, len(self._segments)))]
        self._turn = zip(self._turns(0, 1), cycle(self._sessions), strict=False)
        self._left, self._stop_at, self._current = 0, 0, self._sessions[0]  # of the current segment
        self._shortage: VideoError | None = None
        self._failure: BaseException | None = None
        self._failing = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"video-session-{number}", daemon=True)
            for number in range(len(self._sessions))
        ]
        for thread in self._threads:
            thread.start()

    def runs(self, frames: int) -> Iterator[list[_Slot]]:
        """Up to `frames` slots with the next frames, those of a session that are ready at once together.

        A run is free again at the next request. The iterator is empty after the end. Raises immediately the error of a
        thread, ValueError after `close`, and VideoError where the clip ended too early: in the call after the one that
        returned its last frames.
        """
        given = 0
        while given < frames and (run := self._next_run(frames - given)):
            yield run
            self._current.free(run)
            given += len(run)
        failure = self._failure or (None if given else self._shortage)
        if failure is not None:
            self._join()
            raise failure

    def settle(self) -> None:
        """Waits until the sessions are as far ahead as they can be.

        Between two calls exactly as many frames are decoded as are taken.
        """
        self._room.wait_for(self._is_settled)

    def close(self) -> None:
        """Ends and joins all threads, each after the frame that it works on; may be called again."""
        self._fail(ValueError(CLOSED))
        self._join()

    def _turns(self, first: int, step: int) -> Iterator[range]:
        """Every `step`-th segment, in rounds where the clip is to be decoded over and over."""
        numbers = count(first, step) if self._loop else range(first, len(self._segments), step)
        return (self._segments[number % len(self._segments)] for number in numbers)

    def _is_settled(self) -> bool:
        """True where all room is used, or no session has a slot without a wanted frame, or more frames to come."""
        slots = [session.slots for session in self._sessions]
        if None not in slots:
            held = sum(each.held for each in self._sessions)
            if held == sum(filter(None, slots)) - self._room.spare:
                return True
        return all(session.ended or session.held == session.slots for session in self._sessions)

    def _next_run(self, most: int) -> list[_Slot]:
        """The next run; empty at the end of the clip, where it ended too early, and where a thread failed."""
        if self._shortage is not None:
            return []
        if not self._left:
            segment, session = next(self._turn, (None, None))
            if segment is None or session is None:
                return []
            self._left, self._current, self._stop_at = len(segment), session, segment.stop
        run = self._current.ready_slots(min(most, self._left))
        if self._failure is not None:
            return []
        if not run:
            self._shortage = missing_frames(self.info, self._stop_at - self._left)
            self._stop()
        self._left -= len(run)
        return run

    def _run(self, number: int) -> None:
        session = self._sessions[number]
        try:
            with closing(self._make_reader()) as reader:
                self._decode(reader, session, self._turns(number, len(self._sessions)))
        except _StoppedError:
            pass
        except BaseException as error:
            self._fail(error)
        finally:
            session.end()

    def _decode(self, reader: SegmentReader[_Slot], session: _Session[_Slot], turns: Iterable[range]) -> None:
        session.begin(reader.slots)
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

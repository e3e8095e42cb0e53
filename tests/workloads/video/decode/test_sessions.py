"""Frames that several decoders decode at once, in the clip's order."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from tests.support.patience import HANGS_S, soon, wait_until
from workloads.video.clip.video_file import VideoError, VideoInfo
from workloads.video.decode.sessions import Sessions, segments

pytestmark = pytest.mark.usefixtures("no_thread_stays")
INFO = VideoInfo(Path("clip.mp4"), 160, 96, 23, Fraction(30), "h264", "bt601", keyframes=(0, 5, 6, 14, 20))


def test_a_clip_is_split_at_its_keyframes() -> None:
    assert segments(INFO) == (range(5), range(5, 6), range(6, 14), range(14, 20), range(20, 23))
    assert segments(dataclasses.replace(INFO, keyframes=())) == (range(23),)
    assert sum(map(len, segments(dataclasses.replace(INFO, keyframes=(3, 9))))) == 23


@dataclasses.dataclass
class FakeSlot:
    frame: int | None = None


class FakeReader:
    """Numbers for frames; it wavers, so that threads overtake each other."""

    def __init__(self, slots: int, lost: int = 10**9) -> None:
        self.slots = [FakeSlot() for _ in range(slots)]
        self.decoded: list[int] = []
        self.closed = False
        self._lost = lost

    def read(self, segment: range, free_slot: Callable[[], FakeSlot]) -> Iterator[FakeSlot]:
        for frame in segment:
            if frame >= self._lost:
                return
            slot = free_slot()
            slot.frame = frame
            self.decoded.append(frame)
            time.sleep(frame % 3 / 5000)
            yield slot

    def close(self) -> None:
        self.closed = True


class Readers(list[FakeReader]):
    """All readers that it made."""

    def __init__(self, make: Callable[[], FakeReader] = lambda: FakeReader(3)) -> None:
        self._make = make

    def __call__(self) -> FakeReader:
        self.append(self._make())
        return self[-1]


def session_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("video-session")]


def read(made: Sessions[FakeSlot], frames: int) -> list[int]:
    """Reads as a decoder does: uses each slot for a while, then takes the next."""
    numbers = []
    for run in made.runs(frames):
        before = [slot.frame for slot in run]
        time.sleep(0.0002)
        assert [slot.frame for slot in run] == before, "a slot was filled while it was in use"
        numbers += before
    return numbers


@pytest.mark.parametrize(("slots", "batch"), [(1, 1), (2, 4), (9, 100)])
@pytest.mark.parametrize("sessions", [1, 3, 20])
def test_everything_comes_once_and_in_order(sessions: int, slots: int, batch: int) -> None:
    readers = Readers(partial(FakeReader, slots))
    made = Sessions(INFO, readers, sessions)
    numbers = []
    while batch_of := soon(partial(read, made, batch)):
        numbers += batch_of
    assert numbers == list(range(23))
    assert read(made, batch) == [], "and so it stays"
    made.close()
    assert len(readers) == min(sessions, 5), "one session for a segment is enough"
    assert all(reader.closed for reader in readers)


@pytest.mark.parametrize("lost", [0, 13])
@pytest.mark.parametrize(("loop", "batch"), [(False, 1), (True, 4), (False, 100)])
def test_frames_that_are_missing_are_told_after_those_that_are_there(lost: int, loop: bool, batch: int) -> None:
    made = Sessions(INFO, Readers(partial(FakeReader, 3, lost)), 3, loop)
    numbers: list[int] = []

    def run() -> None:
        while batch_of := read(made, batch):
            numbers.extend(batch_of)

    with pytest.raises(VideoError, match=f"clip.mp4 gave {lost} of its 23 frames"):
        soon(run)
    assert numbers == list(range(lost))
    assert session_threads() == [], "they ended before it was told"
    made.close()


def failing_reader(at: int) -> FakeReader:
    class Failing(FakeReader):
        def read(self, segment: range, free_slot: Callable[[], FakeSlot]) -> Iterator[FakeSlot]:
            for slot in super().read(segment, free_slot):
                if slot.frame == at:
                    raise OSError(f"frame {at} broke the decoder")
                yield slot

    return Failing(3)


@pytest.mark.parametrize(("sessions", "at"), [(1, 0), (3, 7), (5, 22)])
def test_what_a_thread_raises_ends_all_and_comes_out(sessions: int, at: int) -> None:
    readers = Readers(partial(failing_reader, at))
    made = Sessions(INFO, readers, sessions)
    numbers: list[int] = []

    def run() -> None:
        for _ in range(23):
            numbers.extend(read(made, 1))

    with pytest.raises(OSError, match=f"frame {at} broke the decoder"):
        soon(run)
    assert numbers == list(range(len(numbers)))
    assert session_threads() == []
    assert all(reader.closed for reader in readers)
    made.close()


def test_closing_ends_whoever_waits_for_a_frame() -> None:
    begun, closing = threading.Event(), threading.Event()

    class Slow(FakeReader):
        def read(self, segment: range, free_slot: Callable[[], FakeSlot]) -> Iterator[FakeSlot]:
            if segment.start == 5:
                begun.set()
                assert closing.wait(HANGS_S)
            yield from super().read(segment, free_slot)

    made = Sessions(INFO, Readers(partial(Slow, 1)), sessions=5)
    with ThreadPoolExecutor(2, "watched") as watched:
        reading = watched.submit(read, made, 23)
        assert begun.wait(HANGS_S)
        closed = watched.submit(made.close)
        wait_until(lambda: made._failure is not None)
        closing.set()
        closed.result(HANGS_S)
        with pytest.raises(ValueError, match="the decoder is closed: make another one"):
            reading.result(HANGS_S)


@pytest.mark.parametrize(("sessions", "spare"), [(1, 0), (3, 0), (3, 3)])
def test_between_two_settled_moments_as_much_is_decoded_as_is_taken(sessions: int, spare: int) -> None:
    readers = Readers(partial(FakeReader, 4))
    made = Sessions(INFO, readers, sessions, loop=True, spare=spare)
    soon(made.settle)

    def decoded() -> int:
        return sum(len(reader.decoded) for reader in readers)

    assert decoded() == 4 * sessions - spare
    before = decoded()
    for taken in (5, 11):
        soon(partial(read, made, taken))
        soon(made.settle)
        assert decoded() - before == taken
        before = decoded()
    made.close()

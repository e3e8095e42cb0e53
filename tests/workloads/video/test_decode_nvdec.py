"""Frames of the NVDEC decoder, with FFmpeg's decoder in place of the hardware."""

import dataclasses
import sys
import time
import weakref
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import pytest
import torch
from torch.utils.dlpack import to_dlpack

from tests.support.frame_numbers import find_numbers
from tests.support.patience import soon
from workloads.video import decode
from workloads.video.arrivals import luma_grids, luma_of_nv12
from workloads.video.clip import Clip, clip_path
from workloads.video.decode import Decoder, OneSession, ParallelDecoder, segments
from workloads.video.frames import VideoError, decoded_frames, examine

pytestmark = pytest.mark.usefixtures("no_thread_stays")
CLIP = Clip(160, 96, 75)  # keyframes at 0, 30 and 60
HEVC = dataclasses.replace(CLIP, codec="hevc")
DEVICE = torch.device("cpu", 0)


class FakeEvent:
    pass


class FakeStream:
    def __init__(self, device: torch.device | None = None, priority: int = 0) -> None:
        self.priority = priority
        self.cuda_stream = id(self)
        self.waited: list[FakeEvent] = []

    def wait_event(self, event: FakeEvent) -> None:
        self.waited.append(event)

    def record_event(self) -> FakeEvent:
        return FakeEvent()

    def synchronize(self) -> None:
        """Everything is over when its call returns."""


class FakeFrame:
    """PyNvVideoCodec's DecodedFrame: a view of memory that its decoder will overwrite."""

    copies = 0  # of any frame

    def __init__(self, nv12: torch.Tensor, stream: int) -> None:
        self.nv12, self._stream = nv12, stream

    def __dlpack__(self, stream: int) -> object:
        assert stream == self._stream, "another stream than the decoder's would have to wait"
        FakeFrame.copies += 1
        return to_dlpack(self.nv12)


def nv12_of(frame: av.VideoFrame) -> torch.Tensor:
    return torch.from_numpy(frame.reformat(format="nv12").to_ndarray())


class FakeSimpleDecoder:
    """PyNvVideoCodec's SimpleDecoder: frames by their numbers, which last until the next ones are taken."""

    def __init__(self, path: str, gpu_id: int, cuda_stream: int) -> None:
        self._frames = [torch.from_numpy(frame.copy()) for frame in decoded_frames(Path(path))]
        self._stream, self._lent = cuda_stream, list[FakeFrame]()

    def get_batch_frames_by_index(self, indices: range) -> list[FakeFrame]:
        for frame in self._lent:
            frame.nv12.zero_()
        self._lent = [FakeFrame(self._frames[number].clone(), self._stream) for number in indices]
        return self._lent


class FakeThreadedDecoder:
    """PyNvVideoCodec's ThreadedDecoder: frames that last until the next batch is taken."""

    def __init__(self, path: str, buffer_size: int, gpu_id: int, cuda_stream: int) -> None:
        self._stream, self._lent, self.ended = cuda_stream, list[FakeFrame](), False
        self.reconfigure_decoder(path)

    def reconfigure_decoder(self, path: str) -> None:
        self._frames = av.open(path).decode(video=0)

    def get_batch_frames(self, batch_size: int) -> list[FakeFrame]:
        for frame in self._lent:
            frame.nv12.zero_()
        self._lent = [FakeFrame(nv12_of(frame), self._stream) for frame in islice(self._frames, batch_size)]
        return self._lent

    def end(self) -> None:
        self.ended = True


class NoEngineError(Exception):
    """The library's error on a GPU without a decoding engine, with a paragraph of advice."""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A PyNvVideoCodec of FFmpeg, and a CUDA of the host on which nothing runs later than it is called."""
    made: list[dict[str, Any]] = []

    def create(path: str, gpu_id: int, cuda_stream: int) -> FakeSimpleDecoder:
        made.append({"path": path, "gpu": gpu_id})
        return FakeSimpleDecoder(path, gpu_id, cuda_stream)

    fake = SimpleNamespace(
        SimpleDecoder=create,
        ThreadedDecoder=FakeThreadedDecoder,
        PyNvVCException=NoEngineError,
        PyNvVCExceptionUnsupported=NoEngineError,
        made=made,
        caller=FakeStream(),
        read_by=[],  # the stream of each call of record_stream
    )
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", fake)
    for name, stand_in in {
        "Stream": FakeStream,
        "set_device": lambda device: None,
        "set_stream": lambda stream: None,
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda device: fake.caller,
        "current_device": lambda: 3,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: fake.read_by.append(stream))
    return fake


def read_numbers(decoder: Decoder, frames: int) -> list[int]:
    nv12 = decoder.read(frames)
    assert nv12.shape[1:] == (144, 160)
    return find_numbers(luma_of_nv12(nv12), luma_grids(decoder.info.path))


def test_a_clip_is_split_at_its_keyframes(cache_dir: Path) -> None:
    info = examine(clip_path(cache_dir, CLIP))
    assert segments(info) == (range(30), range(30, 60), range(60, 75))
    assert segments(dataclasses.replace(info, keyframes=())) == (range(75),)
    assert segments(dataclasses.replace(info, missing=10))[-1] == range(60, 65)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize(("clip", "sessions"), [(CLIP, 1), (CLIP, 2), (CLIP, 3), (HEVC, 7)])
def test_sessions_give_every_frame_once_and_in_order(
    cache_dir: Path, library: SimpleNamespace, clip: Clip, sessions: int, loop: bool
) -> None:
    """In two rounds of three segments, each of two sessions decodes every segment. A closed decoder gives no frame."""
    decoder = ParallelDecoder(clip_path(cache_dir, clip), DEVICE, loop, sessions)
    numbers = [number for _ in range(20) for number in read_numbers(decoder, 8)]
    assert numbers == [number % 75 for number in range(160 if loop else 75)]
    used = min(sessions, 3)
    assert decoder.stock_frames == (30 if used == 1 else 30 * used - 29)
    decoder.close()
    assert library.made == [{"path": str(clip_path(cache_dir, clip)), "gpu": 0}] * used
    assert [len(decoder.read(8)) for _ in range(2)] == [0, 0]
    alive = weakref.ref(decoder)
    del decoder
    assert alive() is None


def test_the_threaded_decoder_gives_every_frame_in_order(cache_dir: Path, library: SimpleNamespace) -> None:
    decoder = OneSession(clip_path(cache_dir, CLIP), DEVICE, loop=True)
    numbers = [number for _ in range(20) for number in read_numbers(decoder, 8)]
    assert numbers == [number % 75 for number in range(160)]
    decoder.close()
    assert decoder._decoder.ended


def test_events_hand_every_frame_over(
    cache_dir: Path, library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "MOST_AHEAD", 4)
    decoder = ParallelDecoder(clip_path(cache_dir, CLIP), DEVICE, True, 2)
    numbers = [number for _ in range(25) for number in read_numbers(decoder, 8)]
    assert numbers == [number % 75 for number in range(200)]
    decoder.close()
    assert len({*library.caller.waited}) == 200
    assert library.read_by == [library.caller] * 200, "a frame's memory is free only after the reader's copy"


@pytest.mark.parametrize("sessions", [1, 3])
def test_between_two_settled_moments_as_much_is_decoded_as_is_taken(
    cache_dir: Path, library: SimpleNamespace, sessions: int
) -> None:
    earlier = FakeFrame.copies
    decoder = ParallelDecoder(clip_path(cache_dir, CLIP), DEVICE, True, sessions)

    def settled() -> int:
        soon(decoder.settle)
        time.sleep(0.05)  # a session with room for more would take it
        return FakeFrame.copies - earlier

    before = settled()
    assert before == decoder.stock_frames
    for taken in (5, 11, 40):
        decoder.read(taken)
        assert settled() - before == taken
        before += taken
    decoder.close()


def test_all_sessions_end_where_one_decodes_on_while_others_are_stopped(
    cache_dir: Path, library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_room = decode.Session.give_room

    def give_room_slowly(session: decode.Session) -> None:
        give_room(session)
        time.sleep(0.02)

    monkeypatch.setattr(decode.Session, "give_room", give_room_slowly)
    for _ in range(5):
        decoder = ParallelDecoder(clip_path(cache_dir, CLIP), DEVICE, True, 3)
        soon(decoder.settle)
        soon(decoder.close)


@pytest.mark.parametrize("at", [0, 7, 70])
def test_the_error_of_a_session_comes_out(
    cache_dir: Path, library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    whole = FakeSimpleDecoder.get_batch_frames_by_index

    def fails(decoder: FakeSimpleDecoder, indices: range) -> list[FakeFrame]:
        if at in indices:
            raise NoEngineError(f"frame {at} broke\nthe decoder\n=== TROUBLESHOOTING STEPS ===")
        return whole(decoder, indices)

    monkeypatch.setattr(FakeSimpleDecoder, "get_batch_frames_by_index", fails)
    decoder, numbers = ParallelDecoder(clip_path(cache_dir, CLIP), DEVICE, True, 3), list[int]()
    with pytest.raises(VideoError, match=rf"cannot be decoded here \(frame {at} broke the decoder\): make"):
        soon(lambda: [numbers.extend(read_numbers(decoder, 1)) for _ in range(75)])
    assert numbers == [*range(len(numbers))]
    assert len(numbers) <= at
    soon(decoder.settle)
    soon(decoder.close)


def test_a_segment_that_lacks_frames_ends_there(
    cache_dir: Path, library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = FakeSimpleDecoder.get_batch_frames_by_index

    def damaged(decoder: FakeSimpleDecoder, indices: range) -> list[FakeFrame]:
        return whole(decoder, indices)[: 2 if 40 in indices else None]

    monkeypatch.setattr(FakeSimpleDecoder, "get_batch_frames_by_index", damaged)
    decoder = ParallelDecoder(clip_path(cache_dir, CLIP), DEVICE, False, 3)
    numbers: list[int] = []
    soon(lambda: numbers.extend(read_numbers(decoder, 100)))
    assert numbers == [*range(40), *range(60, 75)]
    decoder.close()


def test_a_missing_engine_is_told_in_a_sentence(
    cache_dir: Path, library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NoEngineError("SimpleDecoder :\nError code : 100\n\n=== TROUBLESHOOTING STEPS ===\n1. Running in Docker?")

    path = clip_path(cache_dir, CLIP)
    told = r"there is no NVDEC to decode with \(SimpleDecoder : Error code : 100\): start the container with NVIDIA_"
    monkeypatch.setattr(library, "SimpleDecoder", refuse)
    decoder = ParallelDecoder(path, DEVICE, False, 3)
    with pytest.raises(RuntimeError, match=told):
        decoder.read(8)
    decoder.close()

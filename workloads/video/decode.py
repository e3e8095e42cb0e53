"""Decoding: OpenCV on the CPU against decoders that leave the frames where the next stage needs them.

A step reads the next frames of the clip, round and round, and returns the record of arrivals: float32 [frames], see
`Arrivals`, times the step's stamps.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gpugate.workload import (
    Context,
    Contract,
    Limit,
    Optimization,
    Proof,
    Side,
    Workload,
)
from workloads.parts.random_inputs import host_generator, stamps
from workloads.video.arrivals import Arrivals, judge_db, luma_grids, psnr_db
from workloads.video.clip import (
    BATCH,
    CLIPS,
    EXACT,
    ON_HOST,
    VIDEO_ENGINES,
    VIDEO_SETTING,
    Codec,
    nv12_size,
    source,
)
from workloads.video.frames import (
    VideoError,
    VideoInfo,
    decoded_frames,
    examine,
    rgb_from_nv12,
)

CPU = torch.device("cpu")
# One for each of its threads, at most FFmpeg's 16: OpenCV returns a frame and decodes the following ones.
FRAMES_IN_FFMPEG = min(16, len(os.sched_getaffinity(0)))


class Decoder(ABC):
    """Gives the frames of a video in order, over and over where `loop` is True: NV12 [n, H*3/2, W] on its `device`.

    Up to `stock_frames` frames are decoded ahead. After `settle` they are complete again, where that can be known.
    """

    stock_frames = 0
    on_host = False  # whatever the device is

    def __init__(self, path: Path, device: torch.device = CPU, loop: bool = False) -> None:
        self.info, self.device = examine(path), CPU if self.on_host else device
        self._frames = self._turns(loop)

    def read(self, frames: int) -> Any:
        """The next `frames` frames, fewer at the end, then 0."""
        batch, filled = self._new_batch(frames), 0
        for place, decoded in zip(batch, self._frames, strict=False):
            self._copy(decoded, place)
            filled += 1
        return batch[:filled]

    def _new_batch(self, frames: int) -> Any:
        return torch.empty(frames, *self.info.nv12_shape, dtype=torch.uint8, device=self.device)

    def _turns(self, loop: bool) -> Iterator[Any]:
        while True:
            decoded = None
            for decoded in self._turn():
                yield decoded
            if not loop or decoded is None:
                return

    @abstractmethod
    def _turn(self) -> Iterator[Any]:
        """The frames of the clip from the first one on, each valid until the next one."""

    @abstractmethod
    def _copy(self, decoded: Any, place: Any) -> None:
        """Copies a frame to its place in a batch."""

    def settle(self) -> None:  # noqa: B027 (not every decoder decodes ahead)
        """Returns at once: it is not known how far this decoder is ahead."""

    def close(self) -> None:
        """Drops the iterator over the frames, which refers to the decoder and to an open file."""
        self._frames = iter(())


class HostDecoder(Decoder):
    """OpenCV on all cores of the CPU: BGR by the file's tag, uint8 [n, H, W, 3] in host memory."""

    stock_frames, on_host = FRAMES_IN_FFMPEG, True

    def __init__(self, path: Path, device: torch.device = CPU, loop: bool = False) -> None:
        import cv2

        super().__init__(path, device, loop)
        self._capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)

    def _new_batch(self, frames: int) -> NDArray[np.uint8]:
        return np.empty((frames, self.info.height, self.info.width, 3), np.uint8)

    def _turn(self) -> Iterator[Any]:
        import cv2

        while self._capture.grab() or self._capture.grab():  # after a damaged packet come frames that were held back
            yield self._capture
        self._capture.set(cv2.CAP_PROP_POS_FRAMES, 0)

    def _copy(self, decoded: Any, place: NDArray[np.uint8]) -> None:
        _, image = decoded.retrieve(place)
        if image.shape != place.shape:
            raise VideoError(f"{self.info.path} changes the size of its pictures: convert it to one size")

    def close(self) -> None:
        super().close()
        self._capture.release()


class HostPlanesDecoder(Decoder):
    """FFmpeg's decoder by PyAV, with its own threads, and no conversion to BGR, which no later stage needs."""

    stock_frames, on_host = FRAMES_IN_FFMPEG, True

    def _turn(self) -> Iterator[Any]:
        return decoded_frames(self.info.path)

    def _copy(self, decoded: Any, place: Tensor) -> None:
        # PyTorch's threads would share the copy, and wait for each other while FFmpeg's threads have the cores.
        np.copyto(place.numpy(), decoded)


MakeDecoder = Callable[[Path, torch.device, bool], Decoder]  # the last one: loop over the clip


# --- a bank of frames, decoded once, for stages that are measured without the stage before them -----------------------

BANK_FRAMES: Mapping[str, int] = {"cuda": 48, "cpu": 24}  # 149 MB in NV12 at 1080p, more than fits in L2


def nv12_frames(context: Context) -> Tensor:
    """The first frames of the clip, and a shorter clip is repeated: uint8 [n, H*3//2, W] on the context's device."""
    nv12: Tensor = _bank(HostPlanesDecoder, context)
    return nv12.to(context.device)


def bgr_frames(context: Context) -> NDArray[np.uint8]:
    """The frames of the bank as OpenCV decodes them: uint8 [n, H, W, 3] on the host."""
    bgr: NDArray[np.uint8] = _bank(HostDecoder, context)
    return bgr


@functools.lru_cache(maxsize=4)
def _bank(make: MakeDecoder, context: Context) -> Any:
    with closing(make(source(context).path, CPU, True)) as decoder:
        return decoder.read(BANK_FRAMES[context.device.type])


def batch_numbers(context: Context, index: int) -> Tensor:
    """Input set `index`: int64 [items] on the host, consecutive frames of the bank from a random one on."""
    frames = len(_bank(HostPlanesDecoder, context))
    first = torch.randint(frames - context.items + 1, (1,), generator=host_generator(context, index))
    return first + torch.arange(context.items)


def chosen(numbers: Tensor) -> slice:
    """The slice of the bank with these consecutive frames: gathering them would cost more than some stages."""
    first = int(numbers[0])
    return slice(first, first + len(numbers))


# --- NVDEC, by PyNvVideoCodec -----------------------------------------------------------------------------------------
# A decoder copies each frame, on the stream of its construction, into memory that it overwrites some frames later, on
# that stream. So a copy out of this memory on that stream, before the next request, is complete without any waiting;
# events order it for other streams, and no call here waits for the device while it decodes. Batches are ready on the
# caller's current stream, and valid after `close`. Where there is no NVDEC, RuntimeError says so in one sentence: with
# several sessions when frames are read, since they are built meanwhile.

SESSIONS = 7  # as many as an H200 has engines; the driver spreads them
# Frames ahead of a session: it should finish its next segment while the other ones are read. A clip with longer
# segments decodes less of itself at the same time, and at 4K the frames of all sessions take up to 10 GB.
MOST_AHEAD = 128
# Priority over a network's kernels, each of which would delay a frame's conversion and copy while an engine idles, and
# over the encoders' too: PyTorch has 32 streams of each priority, and these are not shared.
PRIORITY = -2
BUFFERED_FRAMES, FRAMES_AT_ONCE = 24, 8  # decoded ahead by the threaded decoder, and taken from either decoder
POLL_S = 1e-4
Decoded = tuple[Tensor, torch.cuda.Event]  # a frame, uint8 [H*3/2, W], complete after the event


class OneSession(Decoder):  # cuda only
    """PyNvVideoCodec's threaded decoder: one session, and a native thread that decodes ahead."""

    stock_frames = BUFFERED_FRAMES

    def __init__(self, path: Path, device: torch.device, loop: bool = False) -> None:
        super().__init__(path, device, loop)
        self._file = str(path.absolute())
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with nvdec_library() as library:
            self._decoder = library.ThreadedDecoder(
                self._file, BUFFERED_FRAMES, gpu_id=device.index, cuda_stream=self._stream.cuda_stream
            )

    def read(self, frames: int) -> Tensor:
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):  # new memory of the current stream would wait for its work
            batch: Tensor = super().read(frames)
        current.wait_event(self._stream.record_event())
        batch.record_stream(current)
        return batch

    def _turn(self) -> Iterator[Any]:
        # A request overwrites the earlier frames: they were copied on the stream that overwrites them.
        while frames := self._decoder.get_batch_frames(FRAMES_AT_ONCE):
            yield from frames
        self._decoder.reconfigure_decoder(self._file)

    def _copy(self, decoded: Any, place: Tensor) -> None:
        place.copy_(as_tensor(decoded, self._stream))

    def close(self) -> None:
        self._stream.synchronize()
        super().close()
        self._decoder.end()  # a request after that would wait forever


class ParallelDecoder(Decoder):  # cuda only
    """A clip split at its keyframes over several sessions, which are built while the constructor returns.

    Each session decodes every n-th segment, up to a limit of frames ahead, and the reader takes the segments in order.
    The limit is the longest segment, or MOST_AHEAD. All sessions together may have a few frames less ahead, so that
    every session replaces some of the frames that were taken, and not one session all.
    """

    def __init__(self, path: Path, device: torch.device, loop: bool = False, sessions: int = SESSIONS) -> None:
        super().__init__(path, device, loop)
        self._parts = parts = segments(self.info)
        sessions = min(sessions, len(parts))
        most = min(MOST_AHEAD, max(map(len, parts)))
        self.stock_frames = sessions * most - (most - 1 if sessions > 1 else 0)
        room = threading.Semaphore(self.stock_frames)
        turns = [islice(cycle(parts) if loop else parts, first, None, sessions) for first in range(sessions)]
        self._sessions = [Session(self.info, device, each, most, room) for each in turns]
        self._order = cycle(self._sessions)  # of the segments, round and round

    def _turn(self) -> Iterator[Decoded]:
        for segment, session in zip(self._parts, self._order, strict=False):
            yield from islice(iter(session.take, None), len(segment))

    def _copy(self, decoded: Decoded, place: Tensor) -> None:
        (frame, arrived), current = decoded, torch.cuda.current_stream(self.device)
        current.wait_event(arrived)
        place.copy_(frame)
        frame.record_stream(current)  # a session's later frame gets this memory after the copy

    def settle(self) -> None:
        """Waits until the sessions are as far ahead as they can be.

        Between two calls as many frames are copied as are taken, and as many decoded but for a part of a request, of
        FRAMES_AT_ONCE, in each session.
        """
        while sum(each.ready.qsize() for each in self._sessions) < self.stock_frames and not all(
            each.is_full or not each.is_alive() for each in self._sessions
        ):
            time.sleep(POLL_S)

    def close(self) -> None:
        for session in self._sessions:
            session.stopped = True
        for session in self._sessions:
            session.give_room()  # to each one that waits for it
        for session in self._sessions:
            session.join()
        super().close()


class Session(threading.Thread):  # cuda only
    """A session of NVDEC on a thread and a stream of its own: it decodes `turns`, at most `most` frames ahead.

    `room` is the number of frames that all sessions together may still have ahead.
    """

    def __init__(
        self, info: VideoInfo, device: torch.device, turns: Iterable[range], most: int, room: threading.Semaphore
    ) -> None:
        super().__init__(name="video-session", daemon=True)
        self._file, self._device, self._turns, self._most = str(info.path.absolute()), device, turns, most
        self._own_room, self._room = threading.Semaphore(most), room
        # An error ends the session, and None a segment that lacks frames.
        self.ready: SimpleQueue[Decoded | Exception | None] = SimpleQueue()
        self.stopped = False
        self.start()

    @property
    def is_full(self) -> bool:
        return self.ready.qsize() >= self._most

    def take(self) -> Decoded | None:
        """Waits for the next frame; None where its segment has no more."""
        decoded = self.ready.get()
        if isinstance(decoded, Exception):
            raise decoded
        if decoded is not None:
            self.give_room()
        return decoded

    def give_room(self) -> None:
        self._own_room.release()
        self._room.release()

    def run(self) -> None:
        try:
            self._decode_turns()
        except Exception as error:
            self.ready.put(error)

    def _decode_turns(self) -> None:
        torch.cuda.set_device(self._device)
        stream = torch.cuda.Stream(self._device, priority=PRIORITY)  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(stream)  # of this thread
        with nvdec_library() as library:
            decoder = library.SimpleDecoder(self._file, gpu_id=self._device.index, cuda_stream=stream.cuda_stream)
        for segment in self._turns:
            for first in range(0, len(segment), FRAMES_AT_ONCE):
                numbers = segment[first : first + FRAMES_AT_ONCE]
                frames = self._decode(decoder, numbers)
                for frame in frames:
                    self._own_room.acquire()
                    self._room.acquire()  # last: a session that waits must not occupy the room of others
                    if self.stopped:
                        stream.synchronize()
                        return
                    self.ready.put((as_tensor(frame, stream).clone(), stream.record_event()))
                if len(frames) < len(numbers):
                    self.ready.put(None)
                    break
        stream.synchronize()

    def _decode(self, decoder: Any, numbers: range) -> list[Any]:
        """The frames of these numbers, which last until the next ones are decoded."""
        try:
            # By number: that seeks to the keyframe, where `seek_to_index` may decode all frames before it.
            frames: list[Any] = decoder.get_batch_frames_by_index(numbers)
        except Exception as error:
            raise VideoError(f"{self._file} cannot be decoded here ({shorten(error)}): make it anew") from error
        return frames


def segments(info: VideoInfo) -> tuple[range, ...]:
    """The whole clip, split at its keyframes: the numbers of frames that need none of the others to be decoded."""
    starts = sorted({0, *info.keyframes})
    return tuple(range(first, stop) for first, stop in pairwise([*starts, info.frames - info.missing]))


def as_tensor(frame: Any, stream: torch.cuda.Stream) -> Tensor:  # cuda only
    """A view of a decoder's frame, uint8 [H*3/2, W], ready on the stream of the decoder's construction."""
    # The capsule is requested here: PyTorch's own request has arguments that PyNvVideoCodec does not support.
    return from_dlpack(frame.__dlpack__(stream=stream.cuda_stream))


@contextmanager
def nvdec_library() -> Iterator[Any]:  # cuda only
    """PyNvVideoCodec; reports a missing driver or engine in one sentence."""
    refused: tuple[type[Exception], ...] = (RuntimeError,)  # of the import
    try:
        library = importlib.import_module("PyNvVideoCodec")
        refused = library.PyNvVCException, library.PyNvVCExceptionUnsupported
        yield library
    except refused as error:
        advice = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
        raise RuntimeError(f"there is no NVDEC to decode with ({shorten(error)}): {advice}") from error


def shorten(error: Exception) -> str:  # cuda only
    """The message of PyNvVideoCodec without the paragraphs that follow it."""
    return " ".join(str(error).partition("===")[0].split()) or "no message"


# --- the sides -------------------------------------------------------------------------------------------------------

FRAMES = 16  # of a step: the slowest decoder, PyAV's, takes 0.1 s for them on an H200's host
COMPARED_BATCHES = 32  # a frame of each: of our clip every session has decoded a part by then
LEAST_DB = 45.0


def build(make: MakeDecoder, codec: Codec, context: Context) -> Side:
    clip = source(context, codec)
    grids, decoder = luma_grids(clip.path), make(clip.path, context.device, True)
    arrivals = Arrivals(grids, decoder.device)
    of_bgr = partial(arrivals.of_bgr, matrix=clip.matrix)
    record: Callable[[Any], Tensor] = of_bgr if make is HostDecoder else arrivals.of_nv12

    def step(stamp: Tensor) -> Tensor:
        return record(decoder.read(context.items)).to(stamp.device) * stamp

    stock_steps = -(-decoder.stock_frames // context.items)
    return Side(step, finish=decoder.settle, close=decoder.close, stock_steps=stock_steps, works_ahead=True)


def frames_agree(make: MakeDecoder, codec: Codec, context: Context) -> str:
    """Proves that NV12 frames, once converted, are those of OpenCV: one frame of each batch, at another place."""
    clip = source(context, codec)
    found_db = []
    with closing(HostDecoder(clip.path)) as host, closing(make(clip.path, context.device, False)) as decoder:
        for number in range(min(COMPARED_BATCHES, -(-clip.frames // BATCH))):
            wanted, found = host.read(BATCH), decoder.read(BATCH)
            place = number % len(wanted)
            bgr = rgb_from_nv12(found[place : place + 1], clip.matrix)[0].flip(0).movedim(0, 2)
            found_db.append(psnr_db(bgr.cpu().numpy(), wanted[place]))
    return judge_db(found_db, LEAST_DB)


NO_FRAME_CROSSES = {
    "cuda": Contract(
        engaged=(Limit("host_to_device_bytes", at_most=2**20), Limit("device_to_host_bytes", at_most=2**20))
    )
}
ONE_ENGINE = "an engine of the GPU decodes: its frames are on the GPU, and the cores are free for other work"
# An engine decodes twice as many frames of HEVC: at 4,000 a second there are 0.25 ms for all of a frame's Python. An
# H200 gained 3.57x there, and 3.34x for H.264, once a step recorded all of its frames at once. Before, H200s had gained
# 1.4x to 3x and 2.7x to 5.1x, and two H100 on slow hosts 1.66x to 2.02x and 3.55x to 4.03x.
ENGINES = "the clip is split at its keyframes: every engine decodes a part of its own"
HALF_AS_LARGE = "a frame that stays in NV12 is half as large, and nobody converts it"


def _variant(
    name: str, make: MakeDecoder, codec: Codec, speedup: Mapping[str, float], why: str, **more: Any
) -> Optimization:
    contract = {} if make is HostPlanesDecoder else NO_FRAME_CROSSES
    proofs = (Proof("frames agree", partial(frames_agree, make, codec)),)
    words = {"tolerance": EXACT, "needs": VIDEO_ENGINES, "contract": contract, "proofs": proofs, "why": why, **more}
    return Optimization(name, partial(build, make, codec), speedup, **words)


# The inputs are stamps; frames are decoded anew in every step.
_workload = partial(Workload, inputs=stamps, cold=False, timing="pipeline", settings=VIDEO_SETTING)
PLANES = {"sm_90": 0.92, "cuda": 0.6, "cpu": 0.6}
DECODE = _workload(
    name="video/decode",
    baseline=partial(build, HostDecoder, "h264"),
    sizes={kind: nv12_size(kind, FRAMES) for kind in CLIPS},
    optimizations=(
        _variant("nvdec", OneSession, "h264", {"sm_90": 1.64, "cuda": 0.1}, ONE_ENGINE),
        _variant(
            *("nvdec-sessions", ParallelDecoder, "h264", {"sm_90": 2.7, "cuda": 0.9}, ENGINES),
            compared_with="nvdec",
        ),
        _variant("planes", HostPlanesDecoder, "h264", PLANES, HALF_AS_LARGE, needs=ON_HOST),
    ),
)
DECODE_HEVC = _workload(
    name="video/decode-hevc",
    baseline=partial(build, HostDecoder, "hevc"),
    sizes={"cuda": nv12_size("cuda", FRAMES)},
    optimizations=(
        _variant("nvdec", OneSession, "hevc", {"sm_90": 3.43, "cuda": 0.1}, ONE_ENGINE),
        _variant(
            *("nvdec-sessions", ParallelDecoder, "hevc", {"sm_90": 3.0, "cuda": 0.9}, ENGINES), compared_with="nvdec"
        ),
    ),
)

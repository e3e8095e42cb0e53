"""The interface of all encoders of frames into a file, the thread that most of them work on, and the file they fill.

An encoder takes batches of frames in order; `close()` flushes it and renames the complete file to its path, `abort()`
leaves no file. A batch belongs to its encoder from `write()` on: it may be read later, so its content must not change.
The next `write()` or `close()` raises an error of an encoder's thread; the thread has ended by then. As a context
manager an encoder closes, or aborts on an error.

Bit rates differ by an order of magnitude between the codecs, so none has a budget: the defaults aim at a similar
quality, and `Encoded` reports the resulting bit rate.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from workloads.video.clip.video_file import Matrix, Plane, VideoInfo

if TYPE_CHECKING:
    from av.container import OutputContainer

# Matrix, primaries and transfer as ITU-T H.273 numbers them; BT.601 is SMPTE 170M's.
H273_CODE: dict[Matrix, int] = {"bt601": 6, "bt709": 1}
Codec = Literal["mp4v", "x264", "nvjpeg", "nvenc"]
SUFFIXES: dict[Codec, str] = {"mp4v": ".mp4", "x264": ".mp4", "nvjpeg": ".mov", "nvenc": ".mp4"}  # Motion-JPEG: .mov
LEAST_ENCODED_DB = 35.0
_Batch = TypeVar("_Batch")
_Frames = TypeVar("_Frames")
_Self = TypeVar("_Self")


class EncodingError(RuntimeError):
    """An error for a video that cannot be encoded, or not with these frames."""


@dataclass(frozen=True)
class VideoFormat:
    """The frames of a video to encode, with even sides."""

    width: int
    height: int
    frames_per_second: Fraction = Fraction(30)
    matrix: Matrix = "bt601"

    @property
    def nv12_shape(self) -> tuple[int, int]:
        """Rows and columns of a frame in NV12: luma, then rows of interleaved U and V."""
        return self.height * 3 // 2, self.width


@dataclass(frozen=True)
class Encoded:
    """A complete file: its number of frames, its size on disk, and its duration."""

    path: Path
    frames: int
    bytes: int
    seconds: float

    @property
    def bit_rate_mbit_s(self) -> float:
        """The bit rate of the whole file in Mbit/s, container included."""
        return 8e-6 * self.bytes / self.seconds


def encoded(path: Path, frames: int, video: VideoFormat) -> Encoded:
    """The facts of the file that lies at `path` now."""
    return Encoded(path, frames, path.stat().st_size, float(frames / video.frames_per_second))


def require_frames(frames: Tensor, shape: tuple[int, ...]) -> None:
    """Raises EncodingError unless the frames are contiguous uint8 [n, *shape]; n may be 0."""
    if frames.dtype != torch.uint8 or tuple(frames.shape[1:]) != shape or not frames.is_contiguous():
        found = f"{str(frames.dtype).removeprefix('torch.')} {list(frames.shape)} of strides {list(frames.stride())}"
        wanted = f"contiguous uint8 [n, {', '.join(map(str, shape))}]"
        raise EncodingError(f"frames are {found}, and the video needs {wanted}: convert them first")


class Encoder(ABC, Generic[_Frames]):
    """An encoder: batches of frames in, a file out."""

    @abstractmethod
    def write(self, frames: _Frames) -> None:
        """Encodes the frames after all earlier ones. Raises EncodingError for frames that do not fit the video."""

    def settle(self) -> None:
        """Waits until it has as few frames to encode as after the previous call."""

    @abstractmethod
    def close(self) -> Encoded:
        """Flushes, and moves the file to its path; a repeated call returns or raises the result of the first."""

    @abstractmethod
    def abort(self) -> None:
        """Ends without a file; does nothing after `close()`. May be called again."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


def encoder_of(codec: Codec, path: Path, info: VideoInfo, device: torch.device) -> Encoder[Any]:
    """An encoder that writes to `path`. Raises EncodingError and OSError."""
    video = VideoFormat(info.width, info.height, info.frames_per_second, info.matrix)
    if codec == "mp4v":
        from workloads.video.encode.on_cpu import Mp4v

        return Mp4v(path, video)
    if codec == "x264":
        from workloads.video.encode.on_cpu import X264

        return X264(path, video)
    if codec == "nvjpeg":
        from workloads.video.encode.motion_jpeg import MotionJpeg

        return MotionJpeg(path, video)
    from workloads.video.encode.nvenc import Nvenc  # cuda only

    return Nvenc(path, video, device)  # cuda only


class _Aborted(Exception):  # noqa: N818 (it is no error, it is what was requested)
    """An exception where the thread waits for a batch, so that it closes its open files as after an error."""


class ThreadedEncoder(Encoder[_Frames], Generic[_Frames, _Batch]):
    """An encoder whose file is opened, filled and closed on a thread of its own.

    The constructor returns when the thread requests its first batch, and raises any earlier error. A batch is in flight
    from `put` until the thread requests the next one; `most_in_flight` bounds them. One caller at a time.
    """

    def __init__(self, path: Path, video: VideoFormat, most_in_flight: int) -> None:
        self.path, self.video = path, video
        self._most_in_flight, self._room = most_in_flight, threading.Semaphore(most_in_flight)
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()  # None is the end
        self._opened, self._outcome = threading.Event(), Future[Encoded]()
        self._closed = self._aborted = False
        # A daemon: an encoder that is never closed must not hang the interpreter at its end.
        self._thread = threading.Thread(target=self._run, name=f"encode {path.name}", daemon=True)
        self._thread.start()
        self._opened.wait()
        self._raise_failure()

    @abstractmethod
    def _encode(self, batches: Iterator[_Batch]) -> Encoded:
        """Encodes the batches in the thread, from opening the file to its complete end."""

    def wait_for_room(self, batches: int = 1) -> None:
        """Returns when so many batches may be put. Raises the error of the thread, and EncodingError after the end."""
        if self._closed:
            raise EncodingError(f"{self.path} has been closed: open another encoder for more frames")
        for _ in range(batches):
            self._room.acquire()
        self._room.release(batches)
        self._raise_failure()

    def put(self, batch: _Batch) -> None:
        """Queues the next batch; `wait_for_room` has returned before."""
        self._room.acquire()
        self._batches.put(batch)

    def settle(self) -> None:
        self.wait_for_room(self._most_in_flight)

    def close(self) -> Encoded:
        self._end()
        try:
            return self._outcome.result()
        except _Aborted:
            raise EncodingError(f"{self.path} is not written: its encoder was aborted") from None

    def abort(self) -> None:
        self._aborted = True
        self._end()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._batches.put(None)
        self._thread.join()

    def _raise_failure(self) -> None:
        if self._outcome.done():
            self._thread.join()
            self._outcome.result()

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._encode(self._taken()))
        except BaseException as error:
            self._outcome.set_exception(error)
        self._opened.set()
        self._room.release(2 * self._most_in_flight)  # nobody waits for a thread that has ended
        while not self._batches.empty():
            self._batches.get()

    def _taken(self) -> Iterator[_Batch]:
        self._opened.set()
        while (batch := self._batches.get()) is not None and not self._aborted:
            yield batch
            del batch  # the last one would otherwise be kept until the next one comes
            self._room.release()
        if self._aborted:
            raise _Aborted


@dataclass(frozen=True)
class PendingFrames:
    """Frames, complete once `wait()` has returned. It waits for one event, never for the whole device."""

    frames: Tensor
    wait: Callable[[], object] = lambda: None


def as_of_now(frames: Tensor) -> PendingFrames:
    """The frames, complete when the present work of the caller's stream is done."""
    if not frames.is_cuda:
        return PendingFrames(frames)
    done = event()  # cuda only
    done.record(torch.cuda.current_stream(frames.device))  # cuda only
    return PendingFrames(frames, done.synchronize)  # cuda only


@functools.lru_cache(maxsize=8)
def encoders_stream(device: torch.device) -> torch.cuda.Stream:  # cuda only
    """The stream of all encoders of a device: PyTorch has 32, which one for every file would soon share with others.

    Streams of high priority are another 32, so that no decoder or stage ever shares this one.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def event() -> torch.cuda.Event:  # cuda only
    """An event with a blocking wait: a spinning thread would take a core from the encoder's."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


class CodedTrack:
    """A video stream of `container` for pictures that are coded already; `frames` counts them.

    `codec` is FFmpeg's name; H.264 and HEVC are Annex B byte streams. `reordered_frames` is the largest number of
    pictures coded before a picture that is shown ahead of them: 0 without B-frames.
    """

    def __init__(self, container: OutputContainer, codec: str, video: VideoFormat, reordered_frames: int = 0) -> None:
        self._container, self._frame_seconds, self._reordered = container, 1 / video.frames_per_second, reordered_frames
        self._stream = container.add_mux_stream(
            codec,
            rate=video.frames_per_second,
            width=video.width,
            height=video.height,
            time_base=self._frame_seconds,
        )
        self.frames = 0

    def mux(self, picture: bytes | Plane, shown: int | None = None, is_keyframe: bool = True) -> None:
        """Writes one whole picture, in coding order; `shown` is its number in display order.

        Without `shown` the two orders are equal. An array is not copied: its content must not change any more.
        """
        from av.packet import Packet

        packet = Packet(picture)  # type: ignore[arg-type]  # Packet takes any buffer
        packet.stream, packet.time_base = self._stream, self._frame_seconds
        packet.pts = self.frames if shown is None else shown
        packet.dts, packet.duration = self.frames - self._reordered, 1
        packet.is_keyframe = is_keyframe
        self._container.mux(packet)
        self.frames += 1

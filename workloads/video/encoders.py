"""Encoders of frames into a file, and those of the CPU: OpenCV's MPEG-4 Part 2, the baseline, and libx264.

An encoder takes batches of frames in order, and encodes them on a thread of its own; `close()` flushes it and renames
the complete file to its path, `abort()` leaves no file. A batch belongs to its encoder from `write()` on: it may be
read later, so its content must not change. As a context manager an encoder closes, or aborts on an error.

Bit rates differ by an order of magnitude between the codecs, so none has a budget: the defaults aim at a similar
quality, and `Encoded` reports the resulting bit rate.
"""

from __future__ import annotations

import functools
import os
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.video_file import LIMITED_RANGE, Matrix, VideoInfo, replacing_file, replacing_video

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

# Matrix, primaries and transfer as ITU-T H.273 numbers them; BT.601 is SMPTE 170M's.
H273_CODE: dict[Matrix, int] = {"bt601": 6, "bt709": 1}
Codec = Literal["mp4v", "x264", "nvjpeg", "nvenc"]
SUFFIXES: dict[Codec, str] = {"mp4v": ".mp4", "x264": ".mp4", "nvjpeg": ".mov", "nvenc": ".mp4"}  # Motion-JPEG: .mov
LEAST_ENCODED_DB = 35.0
MOST_IN_FLIGHT = 3  # batches
PRESET, CRF = "veryfast", 23  # of libx264; CRF is its constant rate factor
# Frames that libx264 buffers by that preset, besides one for each of its threads: for look-ahead, and B-frames.
KEPT_FRAMES = 14
_Frames = TypeVar("_Frames", bound=Sized)
_Self = TypeVar("_Self")


class EncodingError(RuntimeError):
    """An error for a video that cannot be encoded, or not with these frames."""


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


class Encoder(ABC, Generic[_Frames]):
    """Batches of frames in, a file out. Any call may raise the error of an earlier batch; one caller at a time."""

    def __init__(self, path: Path, info: VideoInfo) -> None:
        self.path, self.info = path, info
        self.frames = 0
        self._in_flight: deque[Future[None]] = deque()
        self._encoded: Encoded | None = None
        self._file = ExitStack()
        self._thread = ThreadPoolExecutor(1, f"encode {path.name}")
        try:
            self._thread.submit(self._open).result()
        except BaseException:
            self.abort()
            raise

    @abstractmethod
    def _open(self) -> None:
        """Opens the encoder and enters its file into `_file`, in the thread, as the following two work there."""

    @abstractmethod
    def _encode(self, batch: Any) -> None: ...

    @abstractmethod
    def _flush(self) -> None: ...

    def _prepared(self, frames: _Frames) -> Any:
        """The batch for the thread, made on the caller's stream."""
        return frames

    def write(self, frames: _Frames) -> None:
        """Encodes the frames after all earlier ones; waits while MOST_IN_FLIGHT batches are on their way."""
        self.wait_for_room()
        self._in_flight.append(self._thread.submit(self._encode, self._prepared(frames)))

    def wait_for_room(self) -> None:
        while len(self._in_flight) >= MOST_IN_FLIGHT:
            self._in_flight.popleft().result()

    def settle(self) -> None:
        """Waits until it has as few frames to encode as after the previous call."""
        while self._in_flight:
            self._in_flight.popleft().result()

    def close(self) -> Encoded:
        """Flushes, and moves the file to its path; a repeated call returns the same."""
        if self._encoded is None:
            try:
                Encoder.settle(self)
                self._thread.submit(self._flush).result()
                self._file.close()
            except BaseException:
                self.abort()
                raise
            self._thread.shutdown()
            seconds = float(self.frames / self.info.frames_per_second)
            self._encoded = Encoded(self.path, self.frames, self.path.stat().st_size, seconds)
        return self._encoded

    def abort(self) -> None:
        """Ends without a file; does nothing after `close()`. May be called again."""
        self._thread.shutdown(cancel_futures=True)
        self._in_flight.clear()
        if self._encoded is None:
            aborted = EncodingError(f"{self.path} is not written: its encoder was aborted")
            self._file.__exit__(EncodingError, aborted, None)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


class Mp4v(Encoder[NDArray[np.uint8]]):
    """OpenCV's VideoWriter: takes uint8 [n, H, W, 3] BGR in host memory, encoded before `write()` returns.

    OpenCV converts to BT.601 in limited range and tags nothing. It takes no quality: it requests one bit per pixel of
    FFmpeg, 62 Mbit/s at 1080p30, which only detailed frames use up. It reports no dropped frame and no failed write, so
    the encoder checks the number of frames of the finished file.
    """

    def write(self, frames: NDArray[np.uint8]) -> None:
        super().write(frames)
        self.settle()

    def _open(self) -> None:
        import cv2

        self._partial = self._file.enter_context(replacing_file(self.path))
        size, rate = (self.info.width, self.info.height), float(self.info.frames_per_second)
        self._writer = cv2.VideoWriter(str(self._partial), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"mp4v"), rate, size)
        self._file.callback(self._writer.release)
        if not self._writer.isOpened():
            raise EncodingError(f"OpenCV writes no MPEG-4 Part 2 to {self.path}: take a name that ends in .mp4")

    def _encode(self, batch: NDArray[np.uint8]) -> None:
        for frame in batch:
            self._writer.write(frame)
            self.frames += 1

    def _flush(self) -> None:
        import cv2

        self._writer.release()
        file = cv2.VideoCapture(str(self._partial), cv2.CAP_FFMPEG)
        found = round(file.get(cv2.CAP_PROP_FRAME_COUNT)) if file.isOpened() else 0  # none without its index
        file.release()
        if found != self.frames:
            lost = f"{self.path} came out with {found} of {self.frames} frames"
            raise EncodingError(f"{lost}: give uint8 [n, {self.info.height}, {self.info.width}, 3], and make room")


class X264(Encoder[Tensor]):
    """libx264 in its own threads: takes uint8 [n, H*3//2, W] NV12, limited range, in host memory or on a CUDA device.

    libx264 takes NV12 directly: its own pictures have interleaved chroma. It copies a frame before `encode` returns,
    hence frames in host memory are encoded where they lie. Frames on a device are copied to page-locked memory first,
    by a stream of the encoders' own.
    """

    def settle(self) -> None:
        """Waits until there is room for a batch, as there was when the last one was written.

        libx264 continues with its buffered frames. Only the end of the file would stop it, and during that stop half of
        its threads idle, which is no part of its speed.
        """
        self.wait_for_room()

    def _prepared(self, frames: Tensor) -> PendingFrames:
        require_frames(frames, self.info.nv12_shape)
        return on_host(frames) if frames.is_cuda else PendingFrames(frames)

    def _open(self) -> None:
        self._container = self._file.enter_context(replacing_video(self.path))
        self._stream: VideoStream = self._container.add_stream("libx264", rate=self.info.frames_per_second)
        configure(self._stream.codec_context, self.info)
        self._stream.codec_context.open()

    def _encode(self, batch: PendingFrames) -> None:
        from av.video.frame import VideoFrame

        batch.wait()
        for pixels in batch.frames.numpy():
            frame = VideoFrame.from_numpy_buffer(pixels, format="nv12")
            frame.pts = self.frames
            self._container.mux(self._stream.encode(frame))
            self.frames += 1

    def _flush(self) -> None:
        self._container.mux(self._stream.encode(None))


def stock_frames() -> int:
    """The number of frames an X264 encoder may still have to encode after `settle`, in batches of eight."""
    return (MOST_IN_FLIGHT - 1) * 8 + KEPT_FRAMES + len(os.sched_getaffinity(0)) * 3 // 2


def configure(context: VideoCodecContext, info: VideoInfo, threads: int = 0) -> None:
    """Sets libx264, not open yet, to NV12 in the video's colours; with 0 threads it takes 1.5 for each core."""
    context.width, context.height, context.pix_fmt = info.width, info.height, "nv12"
    context.framerate, context.time_base = info.frames_per_second, 1 / info.frames_per_second
    context.color_range = LIMITED_RANGE
    context.colorspace = context.color_primaries = context.color_trc = H273_CODE[info.matrix]
    context.options = {"preset": PRESET, "g": "250", "crf": f"{CRF}"}
    # PyAV requests threads that share a frame: slices that cannot be predicted from each other, slower and larger.
    context.thread_type, context.thread_count = "FRAME", threads


# --- what the encoders of the GPU share -------------------------------------------------------------------------------


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


def on_host(frames: Tensor) -> PendingFrames:  # cuda only
    """A copy in page-locked memory, begun after the present work of the caller's stream."""
    stream, copied = encoders_stream(frames.device), event()
    copy = torch.empty(frames.shape, dtype=frames.dtype, pin_memory=True)
    stream.wait_stream(torch.cuda.current_stream(frames.device))
    with torch.cuda.stream(stream):
        copy.copy_(frames, non_blocking=True)
    frames.record_stream(stream)  # freed while the copy is in flight, their memory stays ours until then
    copied.record(stream)
    return PendingFrames(copy, copied.synchronize)


@functools.lru_cache(maxsize=8)
def encoders_stream(device: torch.device) -> torch.cuda.Stream:  # cuda only
    """The stream of all encoders of a device: PyTorch has 32, which one for every file would soon share with others.

    Streams of high priority are another 32, so that no decoder or stage ever shares this one.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def event() -> torch.cuda.Event:  # cuda only
    """An event with a blocking wait: a spinning thread would take a core from the encoder's."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


def require_frames(frames: Tensor, shape: tuple[int, ...]) -> None:
    """Raises EncodingError unless the frames are contiguous uint8 [n, *shape]: encoders get their bare addresses."""
    if frames.dtype != torch.uint8 or tuple(frames.shape[1:]) != shape or not frames.is_contiguous():
        found = f"{frames.dtype} {list(frames.shape)} of strides {list(frames.stride())}"
        raise EncodingError(f"frames are {found}, and the video needs contiguous uint8 [n, *{list(shape)}]")


def coded_track(container: OutputContainer, codec: str, info: VideoInfo) -> Any:
    """A video stream for pictures that are coded already; H.264 is an Annex B byte stream."""
    return container.add_mux_stream(
        codec,
        rate=info.frames_per_second,
        width=info.width,
        height=info.height,
        time_base=1 / info.frames_per_second,
    )


def coded_packet(track: Any, info: VideoInfo, picture: Any, shown: int, coded: int, is_keyframe: bool) -> Any:
    """A whole picture, by its numbers in display order and in coding order; an array is not copied."""
    from av.packet import Packet

    packet = Packet(picture)  # any buffer
    packet.stream, packet.time_base = track, 1 / info.frames_per_second
    packet.pts, packet.dts, packet.duration = shown, coded, 1
    packet.is_keyframe = is_keyframe
    return packet


def encoder_of(codec: Codec, path: Path, info: VideoInfo, device: torch.device) -> Encoder[Any]:
    """An encoder that writes to `path`. Raises EncodingError and OSError."""
    if codec == "mp4v":
        return Mp4v(path, info)
    if codec == "x264":
        return X264(path, info)
    if codec == "nvjpeg":
        from workloads.video.gpu_encoders import MotionJpeg

        return MotionJpeg(path, info)
    from workloads.video.gpu_encoders import Nvenc  # cuda only

    return Nvenc(path, info, device)  # cuda only


class Recorder(Generic[_Frames]):
    """Writes to the encoders that `make(path)` gives; each gets the batches of one clip, then it is closed.

    Closing an encoder, which writes its buffered frames and the end of its file, runs beside the next one. A file is
    removed when the next one is complete, and the last one by `close()`: `latest` names it. The next `settle` raises an
    error of closing, or the `write` that ends the next file; `close()` drops it.
    """

    def __init__(
        self, make: Callable[[Path], Encoder[_Frames]], suffix: str, frames_per_file: int, folder: Path
    ) -> None:
        self.latest: Encoded | None = None
        self._make, self._suffix, self._most = make, suffix, frames_per_file
        self._folder = tempfile.TemporaryDirectory(prefix="recording-", dir=folder)
        self._numbers = count()
        self._closer = ThreadPoolExecutor(1, "close recording")
        self._closing: Future[None] | None = None
        self._encoder: Encoder[_Frames] | None = None
        self._frames = 0

    def write(self, frames: _Frames) -> None:
        if self._encoder is None:
            self._encoder = self._make(Path(self._folder.name, f"clip-{next(self._numbers)}{self._suffix}"))
        self._encoder.write(frames)
        self._frames += len(frames)
        if self._frames >= self._most:
            before, self._closing = self._closing, self._closer.submit(self._close, self._encoder)
            self._encoder, self._frames = None, 0
            if before is not None:
                before.result()

    def settle(self) -> None:
        """Waits like `Encoder.settle`; a file that is being closed is complete then."""
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.result()
        if self._encoder is not None:
            self._encoder.settle()

    def close(self) -> None:
        """Drops the incomplete file; may be called again."""
        self._closer.shutdown()
        if self._encoder is not None:
            self._encoder.abort()
            self._encoder = None
        self._folder.cleanup()

    def _close(self, encoder: Encoder[_Frames]) -> None:
        before, self.latest = self.latest, encoder.close()
        if before is not None:
            before.path.unlink()

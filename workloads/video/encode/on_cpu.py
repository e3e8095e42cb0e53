"""The encoders of the CPU: OpenCV's MPEG-4 Part 2, the baseline, and H.264 by libx264 in its own threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.clip.video_file import replacing_file, replacing_video
from workloads.video.encode.encoding import (
    H273_CODE,
    Encoded,
    Encoder,
    EncodingError,
    PendingFrames,
    ThreadedEncoder,
    VideoFormat,
    encoded,
    encoders_stream,
    event,
    require_frames,
)

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

LIMITED_RANGE = 1  # as FFmpeg numbers it: luma 16..235, chroma 16..240
MP4V_SUFFIXES = (".mp4", ".mov", ".avi")


class Mp4v(Encoder[NDArray[np.uint8]]):
    """OpenCV's VideoWriter: takes uint8 [n, H, W, 3] BGR in host memory, read before `write()` returns.

    OpenCV converts to BT.601 in limited range and tags nothing. It takes no quality: it requests one bit per pixel of
    FFmpeg, 62 Mbit/s at 1080p30, which only detailed frames use up. It reports no failed write, so the encoder checks
    the number of frames of the finished file. Raises EncodingError for a suffix outside of MP4V_SUFFIXES.
    """

    def __init__(self, path: Path, video: VideoFormat) -> None:
        import cv2

        if path.suffix.lower() not in MP4V_SUFFIXES:
            raise EncodingError(f"{path} is no name for MPEG-4 Part 2: let it end in {', '.join(MP4V_SUFFIXES)}")
        if "OPENCV_LOG_LEVEL" not in os.environ:  # OpenCV writes lines on stderr for each incomplete file
            cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
        self.path, self.video = path, video
        self._frames = 0
        self._outcome: Encoded | EncodingError | None = None
        self._file = ExitStack()
        self._partial = self._file.enter_context(replacing_file(path))
        size, rate = (video.width, video.height), float(video.frames_per_second)
        self._writer = cv2.VideoWriter(str(self._partial), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"mp4v"), rate, size)
        if not self._writer.isOpened():
            self.abort()
            raise EncodingError(f"OpenCV writes no MPEG-4 Part 2 to {path}: take one that was built with FFmpeg")

    def write(self, frames: NDArray[np.uint8]) -> None:
        if self._outcome is not None:
            raise EncodingError(f"{self.path} has been closed: open another encoder for more frames")
        shape = (self.video.height, self.video.width, 3)
        if frames.dtype != np.uint8 or frames.shape[1:] != shape:  # OpenCV would drop them without an error
            raise EncodingError(
                f"frames are {frames.dtype} {list(frames.shape)}: give uint8 [n, {shape[0]}, {shape[1]}, 3]"
            )
        for frame in frames:
            self._writer.write(frame)
        self._frames += len(frames)

    def close(self) -> Encoded:
        if self._outcome is None:
            self._writer.release()
            found = _frames_in(self._partial)
            if not self._frames:
                self._drop(f"{self.path} would be a video without a frame: check what was to be encoded")
            elif found != self._frames:
                lost = f"{self.path} came out with {found} of {self._frames} frames"
                self._drop(f"{lost}: make room in {self.path.parent.absolute()} or choose another folder")
            else:
                self._file.close()
                self._outcome = encoded(self.path, self._frames, self.video)
        if isinstance(self._outcome, Encoded):
            return self._outcome
        raise self._outcome or EncodingError(self.path)

    def abort(self) -> None:
        if self._outcome is None:
            self._writer.release()
            self._drop(f"{self.path} is not written: its encoder was aborted")

    def _drop(self, reason: str) -> None:
        self._outcome = EncodingError(reason)
        self._file.__exit__(EncodingError, self._outcome, None)


def _frames_in(path: Path) -> int:
    """The number of frames by the container; 0 for one without its index, which is written last."""
    import cv2

    file = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    frames = file.get(cv2.CAP_PROP_FRAME_COUNT) if file.isOpened() else 0
    file.release()
    return max(0, round(frames))


@dataclass(frozen=True)
class X264Settings:
    """Settings of libx264's quality and speed: `crf` is its constant rate factor.

    0 threads: libx264 chooses, 1.5 for each core.
    """

    preset: str = "veryfast"
    crf: float = 23
    threads: int = 0


SLOTS, BATCH = 3, 8
# Frames that libx264 buffers by preset veryfast, besides one for each of its threads: for look-ahead, and B-frames.
KEPT_FRAMES = 14


def stock_frames() -> int:
    """The number of frames an X264 encoder may still have to encode after `settle`."""
    return (SLOTS - 1) * BATCH + KEPT_FRAMES + len(os.sched_getaffinity(0)) * 3 // 2


class X264(ThreadedEncoder[Tensor, PendingFrames]):
    """An encoder of uint8 [n, H*3//2, W] NV12, limited range, in host memory or on a CUDA device.

    libx264 takes NV12 directly: its own pictures have interleaved chroma. It copies a frame before `encode` returns,
    hence frames in host memory are encoded where they lie, and their memory is free right afterwards. Frames on a
    device are copied by a stream of their own, in pieces of up to `batch` frames, into a ring of `slots` page-locked
    buffers; the caller waits only while all of them are full.
    """

    def __init__(
        self,
        path: Path,
        video: VideoFormat,
        settings: X264Settings = X264Settings(),
        slots: int = SLOTS,
        batch: int = BATCH,
    ) -> None:
        self._settings, self._slots, self._batch = settings, slots, batch
        self._ring: PageLockedRing | None = None
        super().__init__(path, video, most_in_flight=slots)

    def settle(self) -> None:
        """Waits until there is room for a batch, as there was when the last one was written.

        libx264 continues with its buffered frames. Only the end of the file would stop it, and during that stop half of
        its threads idle, which is no part of its speed.
        """
        self.wait_for_room()

    def write(self, frames: Tensor) -> None:
        require_frames(frames, self.video.nv12_shape)
        for piece in torch.split(frames, self._batch):
            self.wait_for_room()
            self.put(self._copied(piece) if piece.is_cuda else PendingFrames(piece))

    def _copied(self, frames: Tensor) -> PendingFrames:  # cuda only
        if self._ring is None:
            self._ring = PageLockedRing(self._slots, (self._batch, *self.video.nv12_shape), frames.device)
        return self._ring.copy(frames)

    def _encode(self, batches: Iterator[PendingFrames]) -> Encoded:
        with replacing_video(self.path) as container:
            stream = self._stream(container)
            numbers = count()
            for batch in batches:
                batch.wait()
                for frame in video_frames(batch.frames, numbers):
                    container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        return encoded(self.path, next(numbers), self.video)

    def _stream(self, container: OutputContainer) -> VideoStream:
        stream = container.add_stream("libx264", rate=self.video.frames_per_second)
        configure(stream.codec_context, self.video, self._settings)
        stream.codec_context.open()
        return stream


class PageLockedRing:  # cuda only
    """`slots` buffers of uint8 [frames, rows, columns]. The caller knows when a slot may be filled again."""

    def __init__(self, slots: int, shape: tuple[int, int, int], device: torch.device) -> None:
        self._device = device
        self._buffers = [torch.empty(shape, dtype=torch.uint8, pin_memory=True) for _ in range(slots)]
        self._copied = [event() for _ in range(slots)]
        self._stream = encoders_stream(device)
        self._turn = 0

    def copy(self, frames: Tensor) -> PendingFrames:
        """Begins to copy the frames, after the caller's stream's pending work, into the slot filled longest ago."""
        slot = self._turn
        self._turn = (slot + 1) % len(self._buffers)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        target, copied = self._buffers[slot][: len(frames)], self._copied[slot]
        with torch.cuda.stream(self._stream):
            target.copy_(frames, non_blocking=True)
        frames.record_stream(self._stream)  # freed while the copy is in flight, their memory stays ours until then
        copied.record(self._stream)
        return PendingFrames(target, copied.synchronize)


def configure(context: VideoCodecContext, video: VideoFormat, settings: X264Settings) -> None:
    """Sets an encoder that is not open yet to NV12, the video's colours, and the settings."""
    context.width, context.height, context.pix_fmt = video.width, video.height, "nv12"
    context.framerate, context.time_base = video.frames_per_second, 1 / video.frames_per_second
    context.color_range = LIMITED_RANGE
    context.colorspace = context.color_primaries = context.color_trc = H273_CODE[video.matrix]
    context.options = {"preset": settings.preset, "g": "250", "crf": f"{settings.crf:g}"}
    # PyAV requests threads that share a frame: slices that cannot be predicted from each other, slower and larger.
    context.thread_type, context.thread_count = "FRAME", settings.threads


def video_frames(frames: Tensor, numbers: Iterator[int]) -> Iterator[VideoFrame]:
    """PyAV's frames in the memory of uint8 [n, H*3//2, W], each with the next number as its time."""
    from av.video.frame import VideoFrame

    for pixels in frames.numpy():
        frame = VideoFrame.from_numpy_buffer(pixels, format="nv12")
        frame.pts = next(numbers)
        yield frame

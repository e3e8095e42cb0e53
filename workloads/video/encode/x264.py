"""H.264 by libx264 in its own threads, fed with NV12 from the host or from a device while the caller goes on.

libx264 takes NV12 directly: its own pictures have interleaved chroma. It copies a frame before `encode` returns, hence
frames are passed where they lie, and their memory is free right afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import av
import torch
from av.container import OutputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from torch import Tensor

from workloads.video.clip.muxing import replacing_video
from workloads.video.encode.encoder_thread import ThreadedEncoder
from workloads.video.encode.encoding import (
    H273_CODE,
    LIMITED_RANGE,
    Encoded,
    EncodingError,
    VideoFormat,
    encoded,
    require_frames,
)
from workloads.video.encode.page_locked_ring import PageLockedRing
from workloads.video.encode.pending_frames import PendingFrames


@dataclass(frozen=True)
class X264Settings:
    """Settings of libx264's quality and speed.

    `crf` is its constant rate factor, a quality; a bit rate replaces it. 0 threads: libx264 chooses, 1.5 for each core.
    """

    preset: str = "veryfast"
    crf: float = 23
    bit_rate_mbit_s: float | None = None
    most_frames_between_keyframes: int = 250
    threads: int = 0

    def options(self) -> dict[str, str]:
        """The settings as options of FFmpeg's libx264."""
        rate = {"crf": f"{self.crf:g}"} if self.bit_rate_mbit_s is None else {"b": f"{1e6 * self.bit_rate_mbit_s:.0f}"}
        return {"preset": self.preset, "g": str(self.most_frames_between_keyframes), **rate}


DEFAULT = X264Settings()
SLOTS, BATCH = 3, 8
# Frames that libx264 buffers by preset veryfast, besides one for each of its threads: for look-ahead, and B-frames.
KEPT_FRAMES = 14


def stock_frames() -> int:
    """The number of frames an encoder by DEFAULT may still have to encode after `settle`."""
    return (SLOTS - 1) * BATCH + KEPT_FRAMES + len(os.sched_getaffinity(0)) * 3 // 2


class X264(ThreadedEncoder[Tensor, PendingFrames]):
    """An encoder of uint8 [n, H*3//2, W] NV12, limited range, in host memory or on a CUDA device.

    Frames on a device are copied by a stream of their own, in pieces of up to `batch` frames, into a ring of `slots`
    page-locked buffers; the caller waits only while all of them are full. Frames in host memory are encoded where they
    lie. Raises EncodingError for settings that libx264 refuses.
    """

    def __init__(
        self, path: Path, video: VideoFormat, settings: X264Settings = DEFAULT, slots: int = SLOTS, batch: int = BATCH
    ) -> None:
        self._settings, self._slots, self._batch = settings, slots, batch
        self._ring: PageLockedRing | None = None
        super().__init__(path, video, most_in_flight=slots)

    def settle(self) -> None:
        """Waits until there is room for a batch, as there was when the last one was written.

        libx264 continues with its buffered frames. Only the end of the file would stop it, and during that stop half of
        its threads idle, which is no part of its speed.
        """
        self._thread.wait_for_room()

    def write(self, frames: Tensor) -> None:
        require_frames(frames, self.video.nv12_shape)
        for piece in torch.split(frames, self._batch):
            self._thread.wait_for_room()
            self._thread.put(self._copied(piece) if piece.is_cuda else PendingFrames(piece))

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
        try:
            stream.codec_context.open()
        except av.FFmpegError as error:
            said = str(error).partition(":")[0]
            raise EncodingError(f"libx264 refuses {self._settings} ({said}): choose others") from error
        return stream


def configure(context: VideoCodecContext, video: VideoFormat, settings: X264Settings) -> None:
    """Sets an encoder that is not open yet to NV12, the video's colours, and the settings."""
    context.width, context.height, context.pix_fmt = video.width, video.height, "nv12"
    context.framerate, context.time_base = video.frames_per_second, 1 / video.frames_per_second
    context.color_range = LIMITED_RANGE
    context.colorspace = context.color_primaries = context.color_trc = H273_CODE[video.matrix]
    context.options = settings.options()
    # PyAV requests threads that share a frame: slices that cannot be predicted from each other, slower and larger.
    context.thread_type, context.thread_count = "FRAME", settings.threads


def video_frames(frames: Tensor, numbers: Iterator[int]) -> Iterator[VideoFrame]:
    """PyAV's frames in the memory of uint8 [n, H*3//2, W], each with the next number as its time."""
    for pixels in frames.numpy():
        frame = VideoFrame.from_numpy_buffer(pixels, format="nv12")
        frame.pts = next(numbers)
        yield frame

"""FFmpeg's decoder on the CPU, with frames in their coded form: NV12, half as large as BGR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.clip.video_file import examine, open_video
from workloads.video.decode.decoding import FRAMES_IN_FFMPEG, SequentialDecoder

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Plane = NDArray[np.uint8]


class HostPlanesDecoder(SequentialDecoder[Plane]):
    """A decoder by PyAV, with FFmpeg's own threads. Raises VideoError for videos that `examine` refuses."""

    stock_frames = FRAMES_IN_FFMPEG

    def __init__(self, path: Path, loop: bool = False) -> None:
        super().__init__(examine(path), loop)
        self._frames = planar_frames(path)

    def read(self, frames: int) -> Tensor:
        """uint8 [n, H * 3 // 2, W]: `frames` frames, fewer at the end, then 0.

        Raises VideoError where the clip ended too early, after all decodable frames were returned.
        """
        batch = np.empty((frames, self.info.height * 3 // 2, self.info.width), np.uint8)
        return torch.from_numpy(batch[: self._fill(batch)])

    def _decode_into(self, frame: Plane) -> bool:
        decoded = next(self._frames, None)
        if decoded is None:
            return False
        rows = self.info.height
        frame[:rows] = plane(decoded, 0)
        chroma = frame[rows:].reshape(rows // 2, self.info.width // 2, 2)
        chroma[..., 0], chroma[..., 1] = plane(decoded, 1), plane(decoded, 2)
        return True

    def _rewind(self) -> None:
        self._frames = planar_frames(self.info.path)

    def _release(self) -> None:
        self._frames = iter(())  # the last reference, which closes the file


def planar_frames(path: Path) -> Iterator[VideoFrame]:
    """The frames in display order, 4:2:0 in three planes; ends where the file is damaged."""
    import av

    with open_video(path) as container, suppress(av.InvalidDataError):
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            yield frame if frame.format.name == "yuv420p" else frame.reformat(format="yuv420p")


def plane(frame: VideoFrame, number: int) -> Plane:
    """uint8 [rows, columns]: Y, U or V, in the frame's own memory."""
    stored: Any = frame.planes[number]
    rows: Plane = np.frombuffer(stored, np.uint8).reshape(stored.height, stored.line_size)
    return rows[:, : stored.width]

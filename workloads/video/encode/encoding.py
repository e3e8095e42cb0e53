"""The interface of all encoders of frames into a file.

An encoder takes batches of frames in order; `close()` flushes it and renames the complete file to its path, `abort()`
leaves no file. A batch belongs to its encoder from `write()` on: it may be read later, so its content must not change.
The next `write()` or `close()` raises an error of an encoder's thread; the thread has ended by then. As a context
manager an encoder closes, or aborts on an error.

Bit rates differ by an order of magnitude between the codecs, so none has a budget: the defaults aim at a similar
quality, and `Encoded` reports the resulting bit rate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

import torch
from torch import Tensor

from workloads.video.clip.video_file import Matrix

# Matrix, primaries and transfer as ITU-T H.273 numbers them; BT.601 is SMPTE 170M's.
H273_CODE: dict[Matrix, int] = {"bt601": 6, "bt709": 1}
LIMITED_RANGE = 1  # as FFmpeg numbers it: luma 16..235, chroma 16..240
_Frames = TypeVar("_Frames")
_Self = TypeVar("_Self")


class EncodingError(RuntimeError):
    """An error for a video that cannot be encoded, or not with these frames."""


@dataclass(frozen=True)
class VideoFormat:
    """The frames of a video to encode. Raises ValueError for odd sides, which 4:2:0 does not have."""

    width: int
    height: int
    frames_per_second: Fraction = Fraction(30)
    matrix: Matrix = "bt601"

    def __post_init__(self) -> None:
        if self.width < 2 or self.height < 2 or self.width % 2 or self.height % 2:
            raise ValueError(f"a frame of {self.width}x{self.height} cannot be 4:2:0: use even sides")
        if self.frames_per_second <= 0:
            raise ValueError(f"{self.frames_per_second} frames per second is no rate: give one above 0")

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
    wanted = f"contiguous uint8 [n, {', '.join(map(str, shape))}]"
    if frames.dtype != torch.uint8 or tuple(frames.shape[1:]) != shape:
        found = f"{str(frames.dtype).removeprefix('torch.')} {list(frames.shape)}"
        raise EncodingError(f"frames are {found}, and the video needs {wanted}: convert them first")
    if not frames.is_contiguous():
        raise EncodingError(
            f"frames have strides {list(frames.stride())}, and the video needs {wanted}: copy them first"
        )


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

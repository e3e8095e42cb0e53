"""What became of frames that were encoded: how many came back, in what order, how well, and for what bit rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import av
import numpy as np
import torch
from av.video.reformatter import ColorRange, Colorspace
from numpy.typing import NDArray

from workloads.video_segmentation.frame_number import read_numbers
from workloads.video_segmentation.video_file import Matrix

Frames = NDArray[np.uint8]
Pixels = Literal["bgr24", "rgb24", "nv12"]
PEAK = 255  # of PSNR; also for limited range, as is usual
NV12_MATRIX: dict[Matrix, Colorspace] = {"bt601": Colorspace.ITU601, "bt709": Colorspace.ITU709}


@dataclass(frozen=True)
class Quality:
    """`frames` came out of the file; `psnr_db` has one value for each of them that there was an original to."""

    frames: int
    bit_rate_mbit_s: float
    psnr_db: tuple[float, ...]

    @property
    def worst_psnr_db(self) -> float:
        return min(self.psnr_db)


def quality(path: Path, originals: Iterable[Frames], pixels: Pixels, matrix: Matrix = "bt601") -> Quality:
    """Decodes the file and compares it, frame by frame, with batches of originals in the order of showing.

    They are uint8, [n, H, W, 3] or in NV12 [n, H*3//2, W]. The bit rate is the whole file's.
    """
    expected = (frame for batch in originals for frame in batch)
    found = 0
    values = []
    for frame in decoded(path, pixels, matrix):
        found += 1
        original = next(expected, None)
        if original is not None:
            values.append(psnr_db(frame, original))
    return Quality(found, _bit_rate_mbit_s(path, found), tuple(values))


def psnr_db(one: Frames, other: Frames) -> float:
    """10 log10(255^2 / mean squared difference) over all samples, infinite for equal frames (ITU-T J.340)."""
    difference = np.subtract(one, other, dtype=np.int32)
    mean_square = float(np.square(difference).mean())
    return 10 * math.log10(PEAK**2 / mean_square) if mean_square else math.inf


def frame_numbers(path: Path) -> list[int]:
    """The numbers that the bar codes of the file's frames tell, in the order of showing; -1 where one is unreadable."""
    numbers = []
    for nv12 in decoded(path, "nv12"):
        luma = torch.from_numpy(nv12[: len(nv12) * 2 // 3])
        numbers.append(int(read_numbers(luma[None])))
    return numbers


def decoded(path: Path, pixels: Pixels, matrix: Matrix = "bt601") -> Iterator[Frames]:
    """The frames as a player shows them, by the colours that the file is tagged with; untagged ones are BT.601.

    In NV12 they are in limited range, with the matrix that is asked for, whatever the file has.
    """
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            if pixels == "nv12":
                frame = frame.reformat(
                    format="nv12", dst_colorspace=NV12_MATRIX[matrix], dst_color_range=ColorRange.MPEG
                )
            yield frame.to_ndarray(format=pixels)


def _bit_rate_mbit_s(path: Path, frames: int) -> float:
    with av.open(str(path)) as container:
        rate = float(container.streams.video[0].average_rate or 0)
    return 8e-6 * path.stat().st_size * rate / frames if frames else 0.0

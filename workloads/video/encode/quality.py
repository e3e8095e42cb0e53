"""The quality of encoded frames: their number, order and PSNR in the file, and its bit rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import av
import cv2
import numpy as np
import torch
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace
from numpy.typing import NDArray

from workloads.video.clip.frame_number import read_numbers
from workloads.video.clip.video_file import Matrix, plane

Frames = NDArray[np.uint8]
Pixels = Literal["bgr24", "rgb24", "nv12"]
PEAK = 255  # of PSNR; by convention also for limited range
NV12_MATRIX: dict[Matrix, Colorspace] = {"bt601": Colorspace.ITU601, "bt709": Colorspace.ITU709}


@dataclass(frozen=True)
class Quality:
    """`frames` is the number in the file. `psnr_db` is that of the frames with an original, by number.

    `numbers` are those of the bar codes, in display order; -1 where one is unreadable.
    """

    frames: int
    bit_rate_mbit_s: float
    psnr_db: Mapping[int, float]
    numbers: tuple[int, ...]


def quality(
    path: Path, originals: Mapping[int, Frames], pixels: Pixels, matrix: Matrix = "bt601", numbered: bool = True
) -> Quality:
    """Decodes the file once; compares frames with the originals of these numbers, in display order.

    An original is uint8, [H, W, 3] or in NV12 [H*3//2, W]. Bar codes are read where frames are `numbered`. The bit rate
    is the whole file's.
    """
    found, psnr, numbers = 0, {}, []
    for number, frame in enumerate(_shown(path)):
        found += 1
        if numbered:
            numbers.append(int(read_numbers(torch.from_numpy(plane(frame, 0).copy())[None])))
        if number in originals:
            psnr[number] = psnr_db(_converted(frame, pixels, matrix), originals[number])
    return Quality(found, _bit_rate_mbit_s(path, found), psnr, tuple(numbers))


def psnr_db(one: Frames, other: Frames) -> float:
    """10 log10(255^2 / mean squared difference) over all samples, infinite for equal frames (ITU-T J.340)."""
    mean_square = cv2.norm(one, other, cv2.NORM_L2SQR) / one.size
    return 10 * math.log10(PEAK**2 / mean_square) if mean_square else math.inf


def _shown(path: Path) -> Iterator[VideoFrame]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        yield from container.decode(stream)


def _converted(frame: VideoFrame, pixels: Pixels, matrix: Matrix) -> Frames:
    if pixels == "nv12":
        frame = frame.reformat(format="nv12", dst_colorspace=NV12_MATRIX[matrix], dst_color_range=ColorRange.MPEG)
    converted: Any = frame.to_ndarray(format=pixels)
    return converted  # type: ignore[no-any-return]  # of 8 bits in all of these formats


def _bit_rate_mbit_s(path: Path, frames: int) -> float:
    with av.open(str(path)) as container:
        rate = float(container.streams.video[0].average_rate or 0)
    return 8e-6 * path.stat().st_size * rate / frames if frames else 0.0

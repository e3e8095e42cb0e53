"""The check that the frames after a stage are the expected ones, by their luma.

The luma of some hundred pixels is read where the frames lie, so that it costs next to nothing. Two frames of our clips
differ by 9.3 levels of it or more, and their composites by 7.7: one that is lost, doubled, swapped or spoiled shows.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpugate.workload import DisprovedError
from workloads.video.frames import LOST_LEVELS, Matrix, decoded_frames, luma_of_rgb, planes

GRID_ROWS = 18  # of points at which the luma is compared: at 1080p every 60th pixel of every 60th row
# Of 255, the largest root mean square of the differences of a frame's luma at these points: a few wrong points count
# more than in the mean. Composites of the clip at 1080p by torch, in NV12 and FP16, are 0.41 off the reference's, with
# CV-CUDA's colours before the network 0.48, and on the small clips of a CPU 0.5, with a network in bfloat16 0.7. The
# mask of the batch before is 1.9 off where the clip moves least, and a network left out, or the blur, 4 and more.
DECODED_LEVELS, COMPOSITED_LEVELS = 3.0, 1.0


@functools.lru_cache(maxsize=4)
def luma_grids(path: Path) -> Tensor:
    """The luma of every frame of the video, in display order: float32 [frames, rows, columns], 0..255."""
    return torch.cat([luma_of_nv12(torch.from_numpy(nv12)[None]) for nv12 in decoded_frames(path)])


class Arrivals:
    """Follows the frames of a clip, round and round from the first one.

    `grids` is the expected luma of every frame, as of `luma_of_nv12`; a grid that is NaN fits every frame. `levels` is
    the largest difference of the luma. The luma is compared on `device`, and no record waits for the host.
    """

    def __init__(self, grids: Tensor, device: torch.device, levels: float = DECODED_LEVELS) -> None:
        self._grids, self._levels, self._place = grids.to(device), levels, 0

    def of_nv12(self, frames: Tensor) -> Tensor:
        """uint8 [n, H * 3 // 2, W] on the device -> float32 [n]: 1 where the luma is right, else 0."""
        return self._record(luma_of_nv12(frames))

    def of_bgr(self, frames: NDArray[np.uint8], matrix: Matrix) -> Tensor:
        """The record of BGR frames, uint8 [n, H, W, 3] on the host: float32 [n] as by `of_nv12`."""
        return self._record(luma_of_bgr(frames, matrix))

    def _record(self, grids: Tensor) -> Tensor:
        wanted = self._grids[self._place : self._place + len(grids)]
        while len(wanted) < len(grids):  # the clip begins again
            wanted = torch.cat((wanted, self._grids[: len(grids) - len(wanted)]))
        self._place = (self._place + len(grids)) % len(self._grids)
        unlike = (grids - wanted).square_().mean((1, 2)) > self._levels**2
        return (~unlike).float()


def luma_of_nv12(frames: Tensor) -> Tensor:
    """The luma of NV12, uint8 [n, H * 3 // 2, W], at some pixels: float32 [n, rows, columns], 0..255, on its device."""
    points: Tensor = _grid(planes(frames)[0])
    return (points.float() - 16) * (255 / 219)  # from limited range, 16..235


def luma_of_bgr(frames: NDArray[np.uint8], matrix: Matrix) -> Tensor:
    """The luma of BGR, uint8 [n, H, W, 3] on the host, at the pixels of `luma_of_nv12`, with the levels it has lost."""
    points = _grid(np.moveaxis(frames, 3, 1))[:, ::-1].astype(np.float32)
    return luma_of_rgb(torch.from_numpy(points), matrix).add_(LOST_LEVELS[matrix])


def _grid(pixels: Any) -> Any:
    """Every n-th pixel in both directions: [..., H, W] -> [..., rows, columns], a view."""
    every = max(1, pixels.shape[-2] // GRID_ROWS)
    return pixels[..., every // 2 :: every, every // 2 :: every]


def judge_db(found_db: list[float], least_db: float) -> str:
    """The figures of a proof in words; raises DisprovedError where a frame is less like OpenCV's than `least_db`."""
    words = f"{min(found_db):.1f} dB with OpenCV's over {len(found_db)} frames"
    if min(found_db) < least_db:
        raise DisprovedError(f"{words}: {least_db:g} dB are wanted")
    return words


def psnr_db(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """10 log10(255^2 / mean squared difference) over all samples, infinite for equal frames (ITU-T J.340)."""
    import cv2

    mean_square = cv2.norm(one, other, cv2.NORM_L2SQR) / one.size
    return 10 * math.log10(255**2 / mean_square) if mean_square else math.inf

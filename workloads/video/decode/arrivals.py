"""Checks that the frames after a stage are the expected ones, by their bar codes and their luma.

A few pixels are read where the frames lie, so that the comparison costs next to nothing.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.clip.colour import LOST_LEVELS, luma_of_rgb
from workloads.video.clip.frame_number import read_numbers
from workloads.video.clip.video_file import Matrix, planar_frames, plane

GRID_ROWS = 18  # of points at which the luma is compared: at 1080p every 60th pixel of every 60th row
# Of 255, the largest root mean square of the differences of a frame's luma at these points: a few wrong points count
# more than in the mean. Composites of the clip at 1080p by torch, in NV12 and FP16, are 0.41 off the reference's, with
# CV-CUDA's colours before the network 0.48, and on the small clips of a CPU 0.5, with a network in bfloat16 0.7. The
# mask of the batch before is 1.9 off where the clip moves least, and a network left out, or the blur, 4 and more.
DECODED_LEVELS, COMPOSITED_LEVELS = 3.0, 1.0
GREEN = 1  # of B, G, R
_Pixels = TypeVar("_Pixels", Tensor, NDArray[np.uint8])


@functools.lru_cache(maxsize=4)
def luma_grids(path: Path) -> Tensor:
    """The luma of every frame of the video, in display order: float32 [frames, rows, columns], 0..255."""
    grids = [torch.from_numpy(_grid(plane(frame, 0)).copy()) for frame in planar_frames(path)]
    return _full_range(torch.stack(grids))


class Arrivals:
    """Follows the frames of a clip, round and round from the first one.

    `grids` is the expected luma of every frame, as of `luma_of_nv12`; a grid that is NaN fits every frame. `numbered`
    is True where the frames carry a bar code, and `levels` is the largest difference of the luma. The place in the clip
    lives on `device`: no record waits for the host.
    """

    def __init__(self, grids: Tensor, device: torch.device, numbered: bool, levels: float = DECODED_LEVELS) -> None:
        self._grids, self._numbered, self._levels = grids.to(device), numbered, levels
        self._place = torch.zeros((), dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return len(self._grids)

    def begin(self) -> None:
        """Restarts at the first frame."""
        self._place.zero_()

    def of_nv12(self, frames: Tensor) -> Tensor:
        """uint8 [n, H * 3 // 2, W] on the device -> float32 [n, 2], each 1 or 0: the number and the luma are right."""
        return self._record(_luma(frames), luma_of_nv12(frames))

    def of_bgr(self, frames: NDArray[np.uint8], matrix: Matrix) -> Tensor:
        """The record of BGR frames, uint8 [n, H, W, 3] on the host: float32 [n, 2] as by `of_nv12`."""
        # The two colours of the bar code differ as much in green as in luma, and green needs no computation.
        return self._record(torch.from_numpy(frames)[..., GREEN], luma_of_bgr(frames, matrix))

    def _record(self, strip: Tensor, grid: Tensor) -> Tensor:
        turn = self._next(len(grid))
        unlike = (grid - self._grids[turn]).square_().mean((1, 2)) > self._levels**2
        in_turn = read_numbers(strip) == turn if self._numbered else torch.ones_like(unlike)
        return torch.stack((in_turn, ~unlike), 1).float()

    def _next(self, count: int) -> Tensor:
        turn = (self._place + torch.arange(count, device=self._place.device)) % len(self._grids)
        self._place += count
        return turn


def _luma(nv12: Tensor) -> Tensor:
    """The luma of NV12: [..., H * 3 // 2, W] -> [..., H, W], a view."""
    return nv12[..., : nv12.shape[-2] * 2 // 3, :]


def luma_of_nv12(frames: Tensor) -> Tensor:
    """The luma of NV12, uint8 [n, H * 3 // 2, W], at some pixels: float32 [n, rows, columns], 0..255, on its device."""
    return _full_range(_grid(_luma(frames)))


def luma_of_bgr(frames: NDArray[np.uint8], matrix: Matrix) -> Tensor:
    """The luma of BGR, uint8 [n, H, W, 3] on the host, at the pixels of `luma_of_nv12`, with the levels it has lost."""
    points = _grid(torch.from_numpy(frames).movedim(3, 1)).float()
    return luma_of_rgb(points.flip(1), matrix).add_(LOST_LEVELS[matrix])


def _grid(pixels: _Pixels) -> _Pixels:
    """Every n-th pixel in both directions: [..., H, W] -> [..., rows, columns], a view."""
    every = max(1, pixels.shape[-2] // GRID_ROWS)
    return pixels[..., every // 2 :: every, every // 2 :: every]


def _full_range(luma: Tensor) -> Tensor:
    """Luma of limited range, 16..235, stretched to 0..255."""
    return (luma.float() - 16) * (255 / 219)

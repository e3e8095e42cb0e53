"""Whether the frames that come out of a stage are those whose turn it is, told by their bar codes and their luma.

What is compared is read where the frames are, from a few of their pixels, so that it costs next to nothing.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.video.clip.colour import luma_of_rgb
from workloads.video.clip.frame_number import read_numbers
from workloads.video.clip.host_planes import planar_frames, plane
from workloads.video.clip.video_file import Matrix

GRID_ROWS = 18  # of points at which the luma is compared: at 1080p every 60th pixel of every 60th row
LEVELS = 3.0  # of 255, by which the luma may differ on average: what is decoded is not coded again
LEVELS_OF_ALL = 8.0  # by which its mean may, where the background was blurred
GREEN = 1  # of B, G, R
_Pixels = TypeVar("_Pixels", Tensor, NDArray[np.uint8])


@functools.lru_cache(maxsize=4)
def luma_grids(path: Path) -> Tensor:
    """Of every frame of the video, in the order of showing: float32 [frames, rows, columns], 0..255."""
    grids = [torch.from_numpy(_grid(plane(frame, 0)).copy()) for frame in planar_frames(path)]
    return _full_range(torch.stack(grids))


class Arrivals:
    """Follows the frames of the clip at `path`, round and round from the first one.

    `numbered` says that they carry a bar code. The place in the clip lives on `device`: no record waits for the host.
    """

    def __init__(self, path: Path, device: torch.device, numbered: bool) -> None:
        self._grids, self._numbered = luma_grids(path).to(device), numbered
        self._place = torch.zeros((), dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return len(self._grids)

    def begin(self) -> None:
        """From the first frame again."""
        self._place.zero_()

    def of_nv12(self, frames: Tensor, blurred: bool = False) -> Tensor:
        """uint8 [n, H * 3 // 2, W] on the device -> float32 [n, 2], each 1 or 0: its number and its luma are right."""
        return self._record(_luma(frames), luma_of_nv12(frames), blurred)

    def of_bgr(self, frames: NDArray[np.uint8], matrix: Matrix, blurred: bool = False) -> Tensor:
        """The same of uint8 [n, H, W, 3] on the host."""
        # The two colours of the bar code are as far apart in green as in luma, and green need not be computed.
        return self._record(torch.from_numpy(frames)[..., GREEN], luma_of_bgr(frames, matrix), blurred)

    def _record(self, strip: Tensor, grid: Tensor, blurred: bool) -> Tensor:
        turn = self._next(len(grid))
        expected = self._grids[turn]
        if blurred:
            alike = (grid.mean((1, 2)) - expected.mean((1, 2))).abs() <= LEVELS_OF_ALL
        else:
            alike = (grid - expected).abs().mean((1, 2)) <= LEVELS
        in_turn = read_numbers(strip) == turn if self._numbered else torch.ones_like(alike)
        return torch.stack((in_turn, alike), 1).float()

    def _next(self, count: int) -> Tensor:
        turn = (self._place + torch.arange(count, device=self._place.device)) % len(self._grids)
        self._place += count
        return turn


def _luma(nv12: Tensor) -> Tensor:
    """[..., H * 3 // 2, W] -> [..., H, W], the same memory."""
    return nv12[..., : nv12.shape[-2] * 2 // 3, :]


def luma_of_nv12(frames: Tensor) -> Tensor:
    """At some pixels of NV12, uint8 [n, H * 3 // 2, W]: float32 [n, rows, columns], 0..255, where the frames are."""
    return _full_range(_grid(_luma(frames)))


def luma_of_bgr(frames: NDArray[np.uint8], matrix: Matrix) -> Tensor:
    """The same of BGR, uint8 [n, H, W, 3] on the host."""
    points = _grid(torch.from_numpy(frames).movedim(3, 1)).float()
    return luma_of_rgb(points.flip(1), matrix)


def _grid(pixels: _Pixels) -> _Pixels:
    """[..., H, W] -> [..., rows, columns], every so many pixels: a view."""
    every = max(1, pixels.shape[-2] // GRID_ROWS)
    return pixels[..., every // 2 :: every, every // 2 :: every]


def _full_range(luma: Tensor) -> Tensor:
    """Limited range, 16..235, as 0..255."""
    return (luma.float() - 16) * (255 / 219)

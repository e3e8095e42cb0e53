"""The number of a frame as a bar code in its pixels, and the check that the frames after a stage are the expected ones.

A strip along the upper edge, a twelfth of the frame high, is divided into cells of equal width: one light, sixteen bits
of the number, four check bits, one dark; the most significant bit comes first. Only the middle half of a cell is read,
in both directions, so that neither lossy coding nor a blur over less than half a cell spoils it: at 1080p a cell is 87
x 90 pixels. Light is yellow and dark is red, like the shapes of our clips and unlike their background: a network that
segments the shapes segments the strip, and foreground is never blurred.

The check compares bar codes and luma. A few pixels are read where the frames lie, so that it costs next to nothing.
"""

from __future__ import annotations

import functools
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpugate.workload import DisprovedError
from workloads.video.frames import LOST_LEVELS, Matrix, decoded_frames, luma_of_rgb, planes

DATA_BITS, CHECK_BITS = 16, 4
CELLS = 1 + DATA_BITS + CHECK_BITS + 1
LIGHT, DARK = (255, 224, 0), (140, 16, 16)  # RGB; their luma is 208 and 53 of 255, in limited range 194 and 61
LEAST_CONTRAST = 60  # of the light cell over the dark one, in levels of luma; intact they are 133 apart or more


def strip_height(height: int) -> int:
    """The number of rows of the bar code, at the top of a frame of `height` rows."""
    return height // 12


def paint(rgb: NDArray[np.uint8], number: int) -> None:
    """Paints `number`, of 16 bits, into the frame `rgb`, uint8 [H, W, 3] of 88 x 48 or more, in place."""
    bits = format(number << CHECK_BITS | int(_check(torch.tensor(number))), f"0{DATA_BITS + CHECK_BITS}b")
    for cell, (left, right) in zip(f"1{bits}0", _cells(rgb.shape[1]), strict=True):
        rgb[: strip_height(len(rgb)), left:right] = LIGHT if cell == "1" else DARK


def read_numbers(luma: Tensor) -> Tensor:
    """The numbers of frames whose luma is uint8 or float [n, H, W], 0..255, on any device: int64 [n] on that device.

    The number is -1 for a frame whose bar code is missing, damaged, or mixed from two frames: a cell that is neither
    light nor dark, or bits that contradict the check bits. No call waits for the device.
    """
    rows = strip_height(luma.shape[1])
    cells = _cell_means(luma[:, rows // 4 : rows - rows // 4])
    light, dark = cells[:, :1], cells[:, -1:]
    shares = (cells - dark) / (light - dark).clamp(min=LEAST_CONTRAST)
    bits = (shares > 0.5).long()
    # A cell in the middle third between light and dark is no bit; nor is any cell where the contrast is too small.
    clear = ((shares < 1 / 3) | (shares > 2 / 3)).all(1)
    weights = 2 ** torch.arange(DATA_BITS - 1, -1, -1, device=luma.device)
    numbers = (bits[:, 1 : 1 + DATA_BITS] * weights).sum(1)
    check = (bits[:, 1 + DATA_BITS : -1] * weights[-CHECK_BITS:]).sum(1)
    return torch.where(clear & (check == _check(numbers)) & (bits[:, 0] == 1), numbers, -1)


def _check(numbers: Tensor) -> Tensor:
    """Four bits, each the parity of every fourth bit of the number: the exclusive or of its four hexadecimal digits.

    The check detects every single wrong bit, and 15 of 16 random codes.
    """
    return (numbers ^ numbers >> 4 ^ numbers >> 8 ^ numbers >> 12) & 15


def _cell_means(strip: Tensor) -> Tensor:
    """The mean of each cell's middle half, float32 [n, cells] on the device of the strip, [n, rows, W]."""
    if strip.device.type != "cpu":
        return strip.float().mean(1) @ _middles(strip.shape[2], strip.device)  # cuda only
    # By NumPy, in one thread: PyTorch's threads wait for each other while FFmpeg's or libx264's have the cores.
    middles = _middle_halves(strip.shape[2])
    sums = np.add.reduceat(strip.numpy().mean(1, dtype=np.float32), middles.ravel(), axis=1)[:, ::2]
    return torch.from_numpy(sums / np.diff(middles)[:, 0].astype(np.float32))


@functools.cache  # kept for the life of the process: a CUDA graph may read it
def _middles(width: int, device: torch.device) -> Tensor:
    """float32 [width, cells]: times the columns of a strip, it is the mean of each cell's middle half."""
    middles = torch.zeros(width, CELLS)
    for cell, (left, right) in enumerate(_middle_halves(width)):
        middles[left:right, cell] = 1 / float(right - left)
    return middles.to(device)


def _middle_halves(width: int) -> NDArray[np.int64]:
    """The first column of every cell's middle half, and the first after it: [cells, 2]."""
    return np.array([(left + (right - left) // 4, right - (right - left) // 4) for left, right in _cells(width)])


def _cells(width: int) -> list[tuple[int, int]]:
    """The first column of every cell, and the first after it."""
    return [*pairwise(cell * width // CELLS for cell in range(CELLS + 1))]


# --- the frames that arrive ------------------------------------------------------------------------------------------

GRID_ROWS = 18  # of points at which the luma is compared: at 1080p every 60th pixel of every 60th row
# Of 255, the largest root mean square of the differences of a frame's luma at these points: a few wrong points count
# more than in the mean. Composites of the clip at 1080p by torch, in NV12 and FP16, are 0.41 off the reference's, with
# CV-CUDA's colours before the network 0.48, and on the small clips of a CPU 0.5, with a network in bfloat16 0.7. The
# mask of the batch before is 1.9 off where the clip moves least, and a network left out, or the blur, 4 and more.
DECODED_LEVELS, COMPOSITED_LEVELS = 3.0, 1.0
GREEN = 1  # of B, G, R


@functools.lru_cache(maxsize=4)
def luma_grids(path: Path) -> Tensor:
    """The luma of every frame of the video, in display order: float32 [frames, rows, columns], 0..255."""
    return torch.cat([luma_of_nv12(torch.from_numpy(nv12)[None]) for nv12 in decoded_frames(path)])


class Arrivals:
    """Follows the frames of a clip, round and round from the first one.

    `grids` is the expected luma of every frame, as of `luma_of_nv12`; a grid that is NaN fits every frame. `numbered`
    is True where the frames carry a bar code, and `levels` is the largest difference of the luma. The place in the clip
    lives on `device`: no record waits for the host.
    """

    def __init__(self, grids: Tensor, device: torch.device, numbered: bool, levels: float = DECODED_LEVELS) -> None:
        self._grids, self._numbered, self._levels = grids.to(device), numbered, levels
        self._place = torch.zeros((), dtype=torch.int64, device=device)

    def begin(self) -> None:
        """Restarts at the first frame."""
        self._place.zero_()

    def of_nv12(self, frames: Tensor) -> Tensor:
        """uint8 [n, H * 3 // 2, W] on the device -> float32 [n, 2], each 1 or 0: the number and the luma are right."""
        return self._record(planes(frames)[0], luma_of_nv12(frames))

    def of_bgr(self, frames: NDArray[np.uint8], matrix: Matrix) -> Tensor:
        """The record of BGR frames, uint8 [n, H, W, 3] on the host: float32 [n, 2] as by `of_nv12`."""
        # The two colours of the bar code differ as much in green as in luma, and green needs no computation.
        return self._record(torch.from_numpy(frames)[..., GREEN], luma_of_bgr(frames, matrix))

    def _record(self, strip: Tensor, grid: Tensor) -> Tensor:
        turn = (self._place + torch.arange(len(grid), device=self._place.device)) % len(self._grids)
        self._place += len(grid)
        unlike = (grid - self._grids.index_select(0, turn)).square_().mean((1, 2)) > self._levels**2
        in_turn = read_numbers(strip) == turn if self._numbered else torch.ones_like(unlike)
        return torch.stack((in_turn, ~unlike), 1).float()


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

"""The number of a frame as a bar code in its pixels, which shows order and loss after every stage.

A strip along the upper edge, a twelfth of the frame high, is divided into cells of equal width: one light, sixteen bits
of the number, four check bits, one dark; the most significant bit comes first. Only the middle half of a cell is read,
in both directions, so that neither lossy coding nor a blur over less than half a cell spoils it: at 1080p a cell is 87
x 90 pixels. Light is yellow and dark is red, like the shapes of our clips and unlike their background: a network that
segments the shapes segments the strip, and foreground is never blurred.
"""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    cells = luma[:, rows // 4 : rows - rows // 4].float().mean(1) @ _middles(luma.shape[2], luma.device)
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


@functools.cache  # kept for the life of the process: a CUDA graph may read it
def _middles(width: int, device: torch.device) -> Tensor:
    """float32 [width, cells]: times the columns of a strip, it is the mean of each cell's middle half."""
    middles = torch.zeros(width, CELLS)
    for cell, (left, right) in enumerate(_cells(width)):
        quarter = (right - left) // 4
        middles[left + quarter : right - quarter, cell] = 1 / (right - left - 2 * quarter)
    return middles.to(device)


def _cells(width: int) -> list[tuple[int, int]]:
    """The first column of every cell, and the first after it."""
    return [*pairwise(cell * width // CELLS for cell in range(CELLS + 1))]

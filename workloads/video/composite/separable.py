"""Blur and enlargement of planes as two matrix products each: `down @ plane @ across.T`.

Row i of a matrix has the weights of sample i. Nearly all of a matrix is zeros, and all of it is multiplied: tensor
cores finish that before any kernel for sparse weights has been launched, and no kernel has to be compiled. The mirrored
border is a part of the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.video.composite.gaussian import Weights
from workloads.video.preprocess.preprocessing import taps


@dataclass(frozen=True)
class Separable:
    """A linear map of planes: `down` is [rows out, rows in], `across` [columns out, columns in], of one type."""

    down: Tensor
    across: Tensor

    def to(self, dtype: torch.dtype) -> Separable:
        return Separable(self.down.to(dtype), self.across.to(dtype))

    def into(self, out: Tensor, planes: Tensor) -> None:
        """Maps [n, rows in, columns in] into `out`, [n, rows out, columns out], whose rows may lie apart."""
        frames = len(planes)
        half_way = torch.bmm(planes, self.across.mT.expand(frames, -1, -1))
        torch.bmm(self.down.expand(frames, -1, -1), half_way, out=out)


def filtering(weights: Weights, pixels: int, device: torch.device) -> Tensor:
    """float32 [pixels, pixels]: an odd number of weights centred on each pixel of a side, as in OpenCV's filters.

    Beyond the ends the side is mirrored about its outermost pixel, as by BORDER_REFLECT_101.
    """
    radius, last = len(weights) // 2, pixels - 1
    reached = torch.arange(pixels, device=device)[:, None] + torch.arange(-radius, radius + 1, device=device)
    mirrored = last - (last - reached.abs()).abs()
    return _matrix(mirrored, torch.tensor(weights, device=device).expand(mirrored.shape), pixels)


def resizing(pixels: int, samples: int, device: torch.device) -> Tensor:
    """float32 [samples, pixels]: bilinear interpolation with half-pixel centres."""
    places, shares = zip(*taps(pixels, samples, device), strict=True)
    return _matrix(torch.stack(places, 1), torch.stack(shares, 1), pixels)


def in_turns(matrix: Tensor, kinds: int) -> Tensor:
    """[rows * kinds, columns * kinds]: the matrix for a side on which samples of some kinds alternate, such as U, V."""
    rows, columns = matrix.shape
    taking_turns = matrix.new_zeros(rows, kinds, columns, kinds)
    for kind in range(kinds):
        taking_turns[:, kind, :, kind] = matrix
    return taking_turns.view(rows * kinds, columns * kinds)


def _matrix(places: Tensor, shares: Tensor, columns: int) -> Tensor:
    """[rows, columns]: each row has `shares`, [rows, taps], at `places`, where one place may come twice."""
    return torch.zeros(len(places), columns, device=places.device).scatter_add_(1, places, shares)

"""ResNet's max pooling, 3 x 3 at every second pixel, with a gradient that every pixel gathers by few comparisons.

A pixel lies in one, two or four windows, by whether its row and its column are even. Taken four pixels at a time, one
of each kind, nine comparisons find all their gradients; a compiler that asks every pixel for its windows needs 36, and
computes where those begin besides.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Tap = tuple[int, int]
TAPS: tuple[Tap, ...] = tuple((row, column) for row in range(3) for column in range(3))


class ParityPool(nn.Module):
    """As `nn.MaxPool2d(3, stride=2, padding=1)`, bit for bit, of images [n, channels, h, w] with even h and w."""

    def forward(self, images: Tensor) -> Tensor:
        """[n, channels, h / 2, w / 2], contiguous in channels_last."""
        pooled: Tensor = _Pooled.apply(images.permute(0, 2, 3, 1))  # type: ignore[no-untyped-call]
        return pooled.permute(0, 3, 1, 2)


class _Pooled(torch.autograd.Function):
    """[n, h, w, channels] to [n, h / 2, w / 2, channels]."""

    @staticmethod
    def forward(context: Any, pixels: Tensor) -> Tensor:
        height, width = pixels.shape[1:3]
        framed = F.pad(pixels, (0, 0, 1, 0, 1, 0), value=-torch.inf)
        most = framed[:, 0:height:2, 0:width:2]
        chosen = torch.zeros_like(most, dtype=torch.int8)
        for number, (row, column) in enumerate(TAPS[1:], start=1):
            one = framed[:, row : row + height : 2, column : column + width : 2]
            better = (one > most) | one.isnan()  # of equal ones the first, and NaN is never lost
            most, chosen = torch.where(better, one, most), chosen.masked_fill(better, number)
        context.save_for_backward(chosen)
        return most

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (chosen,), (gradient,) = context.saved_tensors, gradients
        rows, columns = gradient.shape[1:3]
        grown, choices = (F.pad(tensor, (0, 0, 0, 1, 0, 1)) for tensor in (gradient, chosen))

        def gathered(*taps: Tap) -> Tensor:
            """The sum over these taps of a window of what went to them; below the middle ones lie the next windows."""
            parts = []
            for row, column in taps:
                down, right = int(row == 0), int(column == 0)
                window = slice(None), slice(down, down + rows), slice(right, right + columns)
                parts.append(torch.where(choices[window] == TAPS.index((row, column)), grown[window], 0))
            return sum(parts[1:], start=parts[0])

        even = torch.stack((gathered((1, 1)), gathered((1, 2), (1, 0))), 3)
        odd = torch.stack((gathered((2, 1), (0, 1)), gathered((2, 2), (2, 0), (0, 2), (0, 0))), 3)
        return torch.stack((even, odd), 2).reshape(len(gradient), 2 * rows, 2 * columns, -1)

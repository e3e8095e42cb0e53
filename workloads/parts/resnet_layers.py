"""Layers of a ResNet that compute what torchvision's do, in less time on a GPU: its first convolution, its max pooling.

A pixel lies in one, two or four windows of the pooling, 3 x 3 at every second pixel, depending on whether its row and
its column are even. For four pixels at a time, one of each kind, nine comparisons find all their gradients; Inductor's
own kernel checks four windows for every pixel, and also computes where they begin.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Tap = tuple[int, int]  # row and column in a window, 0 to 2


class PaddedStem(nn.Module):
    """`conv` for images [n, channels, h, w] with channels of zeros beyond its own: its weights get zeros there too.

    For 3 channels in channels_last, cuDNN pads them to 4 by a kernel of its own in every iteration.
    """

    def __init__(self, conv: nn.Conv2d, channels: int) -> None:
        super().__init__()
        self.conv, self.missing = conv, channels - conv.in_channels

    def forward(self, images: Tensor) -> Tensor:
        return F.conv2d(
            images, padded_channels(self.conv.weight, self.missing), None, self.conv.stride, self.conv.padding
        )


def padded_channels(tensor: Tensor, missing: int) -> Tensor:
    """[n, channels + missing, h, w]: zeros after the channels of `tensor`, or `tensor` itself where 0 are missing."""
    return F.pad(tensor, (0, 0, 0, 0, 0, missing)) if missing else tensor


class ParityPool(nn.Module):
    """The operation of `nn.MaxPool2d(3, stride=2, padding=1)`, of images [n, channels, h, w] with even h and w.

    The outputs are equal bit for bit; a gradient may differ by the rounding of a sum of up to four values.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Pools to [n, channels, h / 2, w / 2]."""
        pooled: Tensor = _Pooled.apply(images)  # type: ignore[no-untyped-call]
        return pooled


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, images: Tensor) -> Tensor:
        pooled, places = F.max_pool2d(images, 3, stride=2, padding=1, return_indices=True)
        width = images.shape[-1]
        rows, columns = (torch.arange(size, device=images.device) for size in pooled.shape[-2:])
        row, column = places // width - 2 * rows[:, None] + 1, places % width - 2 * columns + 1
        context.save_for_backward(_number(row, column).to(torch.int8))
        return pooled

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        """The gradient of the images; pixels side by side in memory are channels, as in channels_last."""
        (gradient,), (chosen,) = gradients, context.saved_tensors
        rows, columns = gradient.shape[-2:]
        grown, choices = (F.pad(tensor.permute(0, 2, 3, 1), (0, 0, 0, 1, 0, 1)) for tensor in (gradient, chosen))

        def gathered(*taps: Tap) -> Tensor:
            """The gradient of these taps of the windows at this place, or where a tap is the first, at the next."""
            parts = []
            for row, column in taps:
                down, right = int(row == 0), int(column == 0)
                window = slice(None), slice(down, down + rows), slice(right, right + columns)
                parts.append(torch.where(choices[window] == _number(row, column), grown[window], 0))
            return sum(parts[1:], start=parts[0])

        even = torch.stack((gathered((1, 1)), gathered((1, 2), (1, 0))), 3)
        odd = torch.stack((gathered((2, 1), (0, 1)), gathered((2, 2), (2, 0), (0, 2), (0, 0))), 3)
        pixels = torch.stack((even, odd), 2).reshape(len(gradient), 2 * rows, 2 * columns, -1)
        return pixels.permute(0, 3, 1, 2)


def _number(row: Any, column: Any) -> Any:
    """The number of a tap, 0 to 8."""
    return 3 * row + column

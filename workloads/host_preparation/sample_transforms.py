"""Host transforms of a training loop: a cheap one of small digits, an expensive one of pictures.

Each function prepares one batch: it reads `samples`, uint8 [samples, channels, height, width], at `numbers`, int64
[batch], and fills `prepared`, float32 [batch, channels, height, width]. It runs on the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Prepare = Callable[[Tensor, Tensor, Tensor], None]
MEAN, STD = 0.4 * 255, 0.25 * 255
CHANNELS, BLUR, BLURS = 3, 7, 2
# Of linear RGB to a luminance and two colour differences, ITU-R BT.601.
TO_YCC = ((0.299, 0.587, 0.114), (-0.169, -0.331, 0.5), (0.5, -0.419, -0.081))


@dataclass(frozen=True)
class Preparation:
    """A transform and the shapes it goes between, [channels, height, width] of one sample; `batch` samples at once.

    `flops` counts one sample's multiplications and additions, roughly: bytes and calls dominate the cost.
    """

    prepare: Prepare
    sample_shape: tuple[int, int, int]
    prepared_shape: tuple[int, int, int]
    samples: int
    batch: int
    flops: float


def normalize(samples: Tensor, numbers: Tensor, prepared: Tensor) -> None:
    """Subtracts a mean and divides by a standard deviation: a few microseconds a batch."""
    prepared.copy_(samples[numbers]).sub_(MEAN).div_(STD)


def blur_resize_recolour(samples: Tensor, numbers: Tensor, prepared: Tensor) -> None:
    """Blurs, resizes with antialiasing, changes the colour space and normalizes, one picture after another."""
    line = torch.exp(-(torch.arange(BLUR) - BLUR // 2).square() / 8.0)
    kernel = (line[:, None] * line / line.sum() ** 2).expand(CHANNELS, 1, BLUR, BLUR).contiguous()
    to_ycc = torch.tensor(TO_YCC)[:, :, None, None]
    for row, number in zip(prepared, numbers.tolist(), strict=True):
        picture = samples[number].float()[None]  # [1, 3, height, width]
        for _ in range(BLURS):
            picture = F.conv2d(picture, kernel, padding=BLUR // 2, groups=CHANNELS)
        smaller = F.interpolate(picture, row.shape[1:], mode="bilinear", antialias=True)
        row.copy_((to_ycc * smaller).sum(1)).sub_(MEAN).div_(STD)  # [3, height, width]


CHEAP = Preparation(normalize, (1, 28, 28), (1, 28, 28), samples=2048, batch=32, flops=2.0 * 28 * 28)
EXPENSIVE = Preparation(
    blur_resize_recolour,
    (CHANNELS, 96, 96),
    (CHANNELS, 64, 64),
    samples=256,
    batch=4,
    flops=2.0 * CHANNELS * (BLURS * BLUR**2 * 96**2 + 16 * 64**2),
)

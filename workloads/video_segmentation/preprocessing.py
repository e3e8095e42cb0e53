"""From decoded frames to what the network sees: a third of the size, RGB, ImageNet mean and standard deviation.

Pixels are sampled as cv2.INTER_LINEAR and F.interpolate do, between the two nearest in each direction, with half-pixel
centres and nothing filtered before. From 1080p to 360 x 640 that is every third pixel, the middle one of nine.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.photographs import IMAGENET_MEAN, IMAGENET_STD
from workloads.video_segmentation.colour import CHROMA_GAIN, LUMA_GAIN, LUMA_OF_RED_AND_BLUE, STEP, planes
from workloads.video_segmentation.frame_size import FrameSize
from workloads.video_segmentation.fused import WholeBatch, fused
from workloads.video_segmentation.video_file import Matrix

SHRUNK, MULTIPLE = 3, 8  # the network's input is a third of the frame, in steps of what its strides can divide
BLACK, GREY = 16, 128  # levels of luma and of chroma


def input_size(height: int, width: int) -> tuple[int, int]:
    """(h, w) of the network's input for frames of that size: (360, 640) for 1080p."""
    h, w = (max(MULTIPLE, round(side / SHRUNK / MULTIPLE) * MULTIPLE) for side in (height, width))
    return h, w


def on_host(bgr: NDArray[np.uint8], device: torch.device) -> Tensor:
    """float32 [n, 3, h, w] on `device` from BGR, uint8 [n, H, W, 3]; OpenCV, with threads as it likes.

    Normalizing is a table look-up: a channel has 256 levels, and OpenCV reads a table faster than NumPy divides.
    """
    import cv2

    h, w = input_size(*bgr.shape[1:3])
    frames = np.empty((len(bgr), 3, h, w), np.float32)
    tables = _tables()
    for frame, channels in zip(bgr, frames, strict=True):
        small = cv2.resize(frame, (w, h), interpolation=cv2.INTER_LINEAR)
        for channel, table, out in zip((2, 1, 0), tables, channels, strict=True):
            cv2.LUT(cv2.extractChannel(small, channel), table, dst=out)
    return torch.from_numpy(frames).to(device)


def _tables() -> NDArray[np.float32]:
    """float32 [3, 1, 256]: each level of red, green and blue, normalized."""
    levels = np.linspace(0, 1, 256, dtype=np.float32)
    mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (levels - mean) / std


Axis = tuple[tuple[Tensor, Tensor], ...]


class OnDevice:
    """The network's input, [n, 3, h, w], from NV12 on the same device, in one kernel where that is a GPU.

    Pixels are picked out first, so that a ninth of them is converted to RGB, or four ninths where neither side is an
    exact multiple and 2 x 2 of them are mixed. The conversion is swscale's to the last bit, as in `colour`. For an
    exact third the result is thus `on_host`'s, but for the rounding of FP32. Elsewhere OpenCV mixes with weights of 11
    bits and rounds to a whole level, and nothing is rounded here: up to 0.8 levels apart, 0.014 after normalization.

    Everything runs on the caller's current stream; the result is memory of its own. Raises ValueError for a batch that
    is not uint8 [n, H*3/2, W] of the given size, and for odd sizes.
    """

    def __init__(
        self,
        height: int,
        width: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        matrix: Matrix = "bt601",
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        h, w = input_size(height, width)
        self._size = FrameSize(height, width)
        self._axes = taps(height, h, device), taps(width, w, device)
        self._gains = _chroma_gains(matrix).to(device)
        self._affine = [each.to(device) for each in normalization()]
        self._form = dtype, layout
        self._whole = WholeBatch()
        self._run = fused(_network_input, device)

    def __call__(self, nv12: Tensor) -> Tensor:
        self._size.check_nv12(nv12)
        frames: Tensor = self._run(self._whole(nv12), *self._axes, self._gains, *self._affine, *self._form)
        return frames[: len(nv12)]


def taps(pixels: int, samples: int, device: torch.device) -> Axis:
    """Which of a side's pixels its samples are mixed from: once or twice int64 [samples], and their share, float32.

    Sample i lies at (i + 1/2) pixels / samples - 1/2. A second tap that would have no share is left out.
    """
    halves = (2 * torch.arange(samples) + 1) * pixels - samples  # positions, in halves of a sample
    lower = (halves // (2 * samples)).clamp(min=0)
    share = (halves % (2 * samples)).float() / (2 * samples)
    if not share.any():
        return ((lower.to(device), torch.ones(samples, device=device)),)
    upper = (lower + 1).clamp(max=pixels - 1)
    return (lower.to(device), (1 - share).to(device)), (upper.to(device), share.to(device))


def normalization() -> tuple[Tensor, Tensor]:
    """Scale and shift, float32 [3, 1, 1], from red, green and blue, 0..255, to what ImageNet's networks expect."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return 1 / (255 * std), -mean / std


def _network_input(
    nv12: Tensor,
    rows: Axis,
    columns: Axis,
    gains: Tensor,
    scale: Tensor,
    shift: Tensor,
    dtype: torch.dtype,
    layout: torch.memory_format,
) -> Tensor:
    luma, chroma = planes(nv12)
    mixed = torch.zeros((), device=nv12.device)
    for row, down in rows:
        for column, across in columns:
            picked = luma[:, row[:, None], column], chroma[:, row[:, None] // 2, column // 2]
            mixed = mixed + _rgb(*picked, gains) * (down[:, None] * across)
    return (mixed * scale + shift).to(dtype, memory_format=layout)


def _rgb(luma: Tensor, chroma: Tensor, gains: Tensor) -> Tensor:
    """float32 [n, 3, h, w], whole levels 0..255, of pixels with luma [n, h, w] and chroma [n, h, w, 2], both uint8."""
    red_green_blue = ((luma[:, None] - float(BLACK)) * _in_steps(LUMA_GAIN)).floor()
    for channel, gain in zip(chroma.unbind(-1), gains, strict=True):
        red_green_blue = red_green_blue + ((channel[:, None] - float(GREY)) * gain).floor()
    return red_green_blue.clamp(0, 255)


def _chroma_gains(matrix: Matrix) -> Tensor:
    """float32 [2, 3, 1, 1]: what a level of U and one of V add to red, green and blue."""
    of_red, of_blue = LUMA_OF_RED_AND_BLUE[matrix]
    of_green = 1 - of_red - of_blue
    blue, red = 2 * (1 - of_blue) * CHROMA_GAIN, 2 * (1 - of_red) * CHROMA_GAIN
    of_u, of_v = (0.0, -blue * of_blue / of_green, blue), (red, -red * of_red / of_green, 0.0)
    return torch.tensor([[_in_steps(gain) for gain in gains] for gains in (of_u, of_v)]).view(2, 3, 1, 1)


def _in_steps(gain: float) -> float:
    """A gain in swscale's fixed point: a product with a level is then exact in FP32."""
    return round(gain / STEP) * STEP

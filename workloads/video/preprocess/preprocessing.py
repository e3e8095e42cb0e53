"""Preprocessing of decoded frames for the network: a third of the size, RGB, ImageNet mean and standard deviation.

Pixels are sampled as by cv2.INTER_LINEAR and F.interpolate, between the two nearest in each direction, with half-pixel
centres and without a filter before. From 1080p to 360 x 640 that is every third pixel, the middle one of nine.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.parts.photographs import IMAGENET_MEAN, IMAGENET_STD
from workloads.video.clip.colour import CHROMA_GAIN, LUMA_GAIN, LUMA_OF_RED_AND_BLUE, STEP, FrameSize
from workloads.video.clip.video_file import Matrix

SHRUNK, MULTIPLE = 3, 8  # the network's input is a third of the frame, in steps of what its strides can divide
ZEROS = 16, 128, 128  # levels of Y, U and V that stand for none


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
    """The network's input, [n, 3, h, w], from NV12 on the same device.

    Pixels are selected first, so that a ninth of them is converted to RGB, or four ninths where neither side is an
    exact multiple and 2 x 2 of them are mixed: the later passes are small. The conversion is swscale's to the last bit,
    as in `colour`. For an exact third the result is thus `on_host`'s, except for the rounding of FP32. Elsewhere OpenCV
    mixes with weights of 11 bits and rounds to a whole level, and this class does not round: up to 0.8 levels apart,
    0.014 after normalization.

    All work runs on the caller's current stream; the result is memory of its own. Raises ValueError for a batch that
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
        picked = [
            (_places(height, width, row, column), down[:, None] * across)
            for row, down in taps(height, h, device)
            for column, across in taps(width, w, device)
        ]
        self._places = torch.stack([places for places, _ in picked])  # [taps, 3, h, w]: of Y, U and V in a frame
        self._shares = torch.stack([share for _, share in picked])[:, None]  # [taps, 1, h, w]
        self._zeros = torch.tensor(ZEROS, device=device).view(3, 1, 1).float()
        self._gains = gains_of(matrix).to(device)
        self._scale, self._shift = (each.to(device) for each in normalization())
        self._form = dtype, layout

    def __call__(self, nv12: Tensor) -> Tensor:
        self._size.check_nv12(nv12)
        dtype, layout = self._form
        rgb = self._rgb(nv12.flatten(1)[:, self._places.flatten()].view(-1, *self._places.shape))
        mixed = rgb[:, 0] if len(self._shares) == 1 else (rgb * self._shares).sum(1)
        return torch.addcmul(self._shift, mixed, self._scale).to(dtype, memory_format=layout)

    def _rgb(self, yuv: Tensor) -> Tensor:
        """float32 [n, taps, 3, h, w], whole levels 0..255, from uint8 of that shape."""
        parts = (yuv - self._zeros)[:, :, :, None] * self._gains
        return parts.floor_().sum(2).clamp_(0, 255)


def taps(pixels: int, samples: int, device: torch.device) -> Axis:
    """The pixels of a side that its samples mix: once or twice int64 [samples], and their share, float32.

    Sample i lies at (i + 1/2) pixels / samples - 1/2; beyond the ends the outermost pixel counts. A second tap without
    any share is left out.
    """
    halves = (2 * torch.arange(samples) + 1) * pixels - samples  # positions, in halves of a sample
    lower = halves // (2 * samples)
    share = (halves % (2 * samples)).float() / (2 * samples)
    if not share.any():
        return ((lower.to(device), torch.ones(samples, device=device)),)
    lower, upper = (each.clamp(0, pixels - 1).to(device) for each in (lower, lower + 1))
    return (lower, (1 - share).to(device)), (upper, share.to(device))


def normalization() -> tuple[Tensor, Tensor]:
    """Scale and shift, float32 [3, 1, 1], from red, green and blue, 0..255, to what ImageNet's networks expect."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return 1 / (255 * std), -mean / std


def _places(height: int, width: int, rows: Tensor, columns: Tensor) -> Tensor:
    """int64 [3, h, w]: where Y, U and V of these rows [h] and columns [w] lie among the bytes of an NV12 frame."""
    luma = rows[:, None] * width + columns
    u = (height + rows // 2)[:, None] * width + columns // 2 * 2
    return torch.stack((luma, u, u + 1))


def gains_of(matrix: Matrix) -> Tensor:
    """float32 [3, 3, 1, 1]: the weight of a level of Y, of U and of V in red, green and blue; exact in FP32 (STEP)."""
    of_red, of_blue = LUMA_OF_RED_AND_BLUE[matrix]
    of_green = 1 - of_red - of_blue
    blue, red = 2 * (1 - of_blue) * CHROMA_GAIN, 2 * (1 - of_red) * CHROMA_GAIN
    of_u, of_v = (0.0, -blue * of_blue / of_green, blue), (red, -red * of_red / of_green, 0.0)
    return torch.tensor([(LUMA_GAIN,) * 3, of_u, of_v]).div_(STEP).round_().mul_(STEP).view(3, 3, 1, 1)

"""NV12 and RGB, with the arithmetic of FFmpeg's swscale, through which OpenCV shows every frame it decodes.

NV12 is uint8 [n, H*3/2, W]: the luma of a frame, then the rows of its chroma, U and V in turns, one pair for 2 x 2
pixels. All of it is limited range: luma 16..235, chroma 16..240 (ITU-R BT.601 and BT.709).
"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.video.video_file import Matrix

# The luma of red and of blue: ITU-R BT.601-7 section 2.5.1, BT.709-6 item 3.2. Green has the rest.
LUMA_OF_RED_AND_BLUE: dict[Matrix, tuple[float, float]] = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}
LUMA_GAIN, CHROMA_GAIN = 255 / 219, 255 / 224
# Lost levels of grey, by rounding down once for brightness, once for red and blue each, twice for green: 0.5 each.
LOST_LEVELS: dict[Matrix, float] = {matrix: 1.5 - 0.5 * sum(shares) for matrix, shares in LUMA_OF_RED_AND_BLUE.items()}
STEP = 2**-13  # of swscale's fixed-point coefficients


def planes(nv12: Tensor) -> tuple[Tensor, Tensor]:
    """Views of uint8 [n, H*3/2, W] on the same memory: Y [n, H, W] and UV [n, H/2, W/2, 2].

    Raises ValueError for a shape that is not that of NV12 with even sides.
    """
    frames, rows, width = nv12.shape
    if rows % 3 or width % 2:
        raise ValueError(f"NV12 cannot be {list(nv12.shape)}: give [n, H*3/2, W] with H and W even")
    height = rows // 3 * 2
    return nv12[:, :height], nv12[:, height:].view(frames, height // 2, width // 2, 2)


def rgb_from_nv12(nv12: Tensor, matrix: Matrix) -> Tensor:
    """uint8 [n, 3, H, W] from uint8 [n, H*3/2, W], on the device of the input.

    One pair of chroma serves its 2 x 2 pixels, and each product is rounded down separately, as in swscale's code for
    x86 and for a frame that keeps its size: there the result is OpenCV's to the last bit. Its code for other processors
    may round differently. Exact arithmetic, rounded once at the end, would be lighter by 1.0 to 1.6 levels on average,
    a PSNR of 45 dB to this.

    OpenCV 5 follows the matrix that a file is tagged with, and takes an untagged one for BT.601, whatever its size.
    """
    luma, chroma = planes(nv12)
    frames, height, width = luma.shape
    brightness = _rounded_down(luma, 16, LUMA_GAIN).view(frames, 1, height // 2, 2, width // 2, 2)
    rgb = brightness + _colours(chroma, matrix)[:, :, :, None, :, None]
    return rgb.clamp_(0, 255).to(torch.uint8).view(frames, 3, height, width)


def nv12_from_rgb(rgb: Tensor, matrix: Matrix, lost_levels: float = 0.0) -> Tensor:
    """uint8 [n, H*3/2, W] from uint8 [n, 3, H, W], H and W even, on the device of the input.

    Chroma is that of the mean of 2 x 2 pixels; everything is rounded to the nearest level. swscale's own conversion
    differs by a level at most in Y, and in chroma, which it filters differently, by 54 to 66 dB.

    `lost_levels` is the amount by which the RGB is too dark on average: LOST_LEVELS for RGB from `rgb_from_nv12`.
    """
    frames, _, height, width = rgb.shape
    nv12 = torch.empty(frames, height * 3 // 2, width, dtype=torch.uint8, device=rgb.device)
    luma, chroma = planes(nv12)
    luma.copy_(luma_of_rgb(rgb, matrix).add_(lost_levels).div_(LUMA_GAIN).add_(16.5))  # truncated into bytes
    mean = rgb.view(frames, 3, height // 2, 2, width // 2, 2).mean((3, 5), dtype=torch.float32)
    of_red, of_blue = LUMA_OF_RED_AND_BLUE[matrix]
    grey = luma_of_rgb(mean, matrix)
    for place, channel, share in ((0, 2, of_blue), (1, 0, of_red)):
        difference = (mean[:, channel] - grey) / (2 * (1 - share) * CHROMA_GAIN)
        chroma[..., place].copy_(difference.add_(128.5))
    return nv12


def luma_of_rgb(rgb: Tensor, matrix: Matrix) -> Tensor:
    """float32 [n, H, W], 0..255, from any [n, 3, H, W] of that range."""
    of_red, of_blue = LUMA_OF_RED_AND_BLUE[matrix]
    grey = rgb[:, 0] * of_red
    return grey.add_(rgb[:, 1], alpha=1 - of_red - of_blue).add_(rgb[:, 2], alpha=of_blue)


def _colours(chroma: Tensor, matrix: Matrix) -> Tensor:
    """int16 [n, 3, H/2, W/2]: the share of UV, uint8 [n, H/2, W/2, 2], in the levels of red, green and blue."""
    of_red, of_blue = LUMA_OF_RED_AND_BLUE[matrix]
    of_green = 1 - of_red - of_blue
    u, v = chroma.unbind(-1)
    red = _rounded_down(v, 128, 2 * (1 - of_red) * CHROMA_GAIN)
    blue = _rounded_down(u, 128, 2 * (1 - of_blue) * CHROMA_GAIN)
    green = _rounded_down(u, 128, -2 * (1 - of_blue) * of_blue / of_green * CHROMA_GAIN)
    green += _rounded_down(v, 128, -2 * (1 - of_red) * of_red / of_green * CHROMA_GAIN)
    return torch.stack((red, green, blue), 1)


def _rounded_down(levels: Tensor, zero: int, gain: float) -> Tensor:
    """int16: the bytes `levels` above `zero`, times the gain in swscale's fixed point, rounded down.

    Exact in float32: the product is a whole number of steps, of which there are fewer than 2**24.
    """
    steps = round(gain / STEP)
    return torch.sub(levels, float(zero)).mul_(steps * STEP).floor_().to(torch.int16)

"""A Gaussian blur as two one-dimensional ones: for a pixel 2 x 31 products instead of 31 x 31.

Images are [n, h, w, channels], with their border as OpenCV's default BORDER_REFLECT_101 makes it: rows and columns
mirrored about the outermost pixel. Everything is plain tensor arithmetic over shifted slices. Each of `bordered`,
`down` and `across` is one kernel an image once Inductor has fused it, provided that each is compiled for itself:
together it would compute the first direction anew for every tap of the second.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Weights = tuple[float, ...]

BLUR_PIXELS, BLUR_HEIGHT = 31, 1080
# Rows that are a multiple of this many bytes are loaded several pixels at once.
ROW_BYTES = 16


def blur_pixels(height: int) -> int:
    """Width of the Gaussian for frames of that height: 31 for 1080, in proportion for others, odd and at least 3."""
    return max(3, 2 * round((BLUR_PIXELS * height / BLUR_HEIGHT - 1) / 2) + 1)


def gaussian_sigma(pixels: int) -> float:
    """What OpenCV's getGaussianKernel derives from the width where no sigma is given: 5 for 31 pixels."""
    return 0.3 * ((pixels - 1) * 0.5 - 1) + 0.8


def gaussian_weights(pixels: int) -> Weights:
    """`pixels` samples of that Gaussian, an odd number of them; their sum is 1."""
    sigma, middle = gaussian_sigma(pixels), pixels // 2
    samples = [math.exp(-((place - middle) ** 2) / (2 * sigma**2)) for place in range(pixels)]
    return tuple(sample / sum(samples) for sample in samples)


def halved(weights: Weights) -> Weights:
    """What `weights`, an odd number, are to an image of half the size: 17 for 31.

    Repeating every pixel, filtering, and taking the mean of two pixels is one filter, with exactly these weights: tap m
    is g[2m] + (g[2m-1] + g[2m+1]) / 2. So chroma of half the size is blurred as if it had been shown at full size.
    """
    radius = len(weights) // 2
    reach = (radius + 1) // 2
    full = (*(0.0,) * (2 * reach + 1 - radius), *weights, *(0.0,) * (2 * reach + 1 - radius))
    return tuple(full[2 * tap + 1] + (full[2 * tap] + full[2 * tap + 2]) / 2 for tap in range(2 * reach + 1))


def halved_sigma(sigma: float) -> float:
    """The sigma of `halved` weights, in pixels of the smaller image.

    Variances add, and repeating a pixel and taking the mean of two have one of 1/4 each.
    """
    return math.sqrt(sigma**2 + 0.5) / 2


def bordered(image: Tensor, weights: Weights) -> Tensor:
    """A copy with the border that the weights reach over, and a few more columns: see ROW_BYTES."""
    radius = len(weights) // 2
    return _mirrored(_mirrored(image, 1, radius), 2, _margin(radius))


def down(image: Tensor, weights: Weights) -> Tensor:
    """float16 [n, h, wider, channels]: a bordered image, uint8, blurred down its columns.

    Half precision keeps it within 1/16 of a level, and the rows that `across` reads half as long.
    """
    return _weighted(image, weights, dim=1).half()


def across(image: Tensor, weights: Weights) -> Tensor:
    """float32 [n, h, w, channels], 0..255: what `down` returned, blurred across its rows."""
    radius = len(weights) // 2
    beyond = _margin(radius) - radius
    return _weighted(image.narrow(2, beyond, image.shape[2] - 2 * beyond), weights, dim=2)


def _margin(radius: int) -> int:
    """Columns of border on each side; two of them leave a row the multiple of ROW_BYTES that it was."""
    step = ROW_BYTES // 2
    return -(-radius // step) * step


def _mirrored(image: Tensor, dim: int, by: int) -> Tensor:
    last = image.shape[dim] - 1
    places = torch.arange(-by, last + 1 + by, device=image.device)
    return image.index_select(dim, last - (last - places.abs()).abs())


def _weighted(image: Tensor, weights: Weights, dim: int) -> Tensor:
    """float32: the sum of as many shifted slices as there are weights."""
    length = image.shape[dim] - len(weights) + 1
    total = image.narrow(dim, 0, length).float() * weights[0]
    for place, weight in enumerate(weights[1:], 1):
        total = torch.add(total, image.narrow(dim, place, length), alpha=weight)
    return total

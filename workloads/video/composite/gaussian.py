"""The Gaussian of the background blur, as weights along one axis, and its equivalent at half the size."""

from __future__ import annotations

import math

Weights = tuple[float, ...]

BLUR_PIXELS, BLUR_HEIGHT = 31, 1080


def blur_pixels(height: int) -> int:
    """Width of the Gaussian for frames of that height: 31 for 1080, in proportion for others, odd and at least 3."""
    return max(3, 2 * round((BLUR_PIXELS * height / BLUR_HEIGHT - 1) / 2) + 1)


def gaussian_sigma(pixels: int) -> float:
    """OpenCV's rule in getGaussianKernel for a width without a sigma: 5 for 31 pixels."""
    return 0.3 * ((pixels - 1) * 0.5 - 1) + 0.8


def gaussian_weights(pixels: int) -> Weights:
    """`pixels` samples of the Gaussian of `gaussian_sigma`, an odd number of them; their sum is 1."""
    sigma, middle = gaussian_sigma(pixels), pixels // 2
    samples = [math.exp(-((place - middle) ** 2) / (2 * sigma**2)) for place in range(pixels)]
    return tuple(sample / sum(samples) for sample in samples)


def halved(weights: Weights) -> Weights:
    """The equivalent of `weights`, an odd number, for an image of half the size: 17 for 31.

    Repeating every pixel, filtering, and taking the mean of two pixels is one filter, with exactly these weights: tap m
    is g[2m] + (g[2m-1] + g[2m+1]) / 2. So chroma of half the size is blurred as if it had been shown at full size.
    """
    radius = len(weights) // 2
    reach = (radius + 1) // 2
    full = (*(0.0,) * (2 * reach + 1 - radius), *weights, *(0.0,) * (2 * reach + 1 - radius))
    return tuple(full[2 * tap + 1] + (full[2 * tap] + full[2 * tap + 2]) / 2 for tap in range(2 * reach + 1))


def halved_sigma(sigma: float) -> float:
    """The sigma of `halved` weights, in pixels of the smaller image.

    Variances add; repeating a pixel has a variance of 1/4, and so has taking the mean of two.
    """
    return math.sqrt(sigma**2 + 0.5) / 2

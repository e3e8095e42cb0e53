"""All pictures in device memory as bytes: a batch is gathered, cropped, mirrored, normalized and resized there.

CIFAR-10 with its padding is 240 MB; as float32 images of 224 x 224, a loader's format, it would be 30 GB.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.parts.padded_stem import padded_channels
from workloads.resnet18_training.cifar import Pictures
from workloads.resnet18_training.data import Batch, normalization, padded
from workloads.resnet18_training.sample_order import SampleOrder
from workloads.resnet18_training.step import Recipe


class ResidentPictures:
    """A source whose every `take()` is the next batch of the order, all device work: the position is on the device too.

    So the calls can be captured in a CUDA graph, and every replay takes the next batch. `order` lies on the device that
    is to store the pictures; `make_images` is `image_maker`'s, compiled or not.
    """

    def __init__(self, pictures: Pictures, order: SampleOrder, batch: int, make_images: Callable[..., Tensor]) -> None:
        device = order.ids.device
        pixels = padded(pictures.pixels)
        self._pixels = pixels.to(device)
        self._marks = byte_sums_on_host(pixels).to(device)  # by id
        self._labels = pictures.labels.to(device)
        self._order, self._make_images = order, make_images
        self._steps = torch.arange(batch, device=device)
        self._batch = batch
        self._position = torch.zeros((), dtype=torch.int64, device=device)

    def take(self) -> Batch:
        """The next batch; the previous batch stays untouched."""
        positions = (self._position + self._steps) % len(self._order)
        self._position += self._batch
        order = self._order
        ids = order.ids[positions]
        how = order.tops[positions], order.lefts[positions], order.flips[positions]
        images = self._make_images(self._pixels, ids, *how)
        sound = byte_sums(self._pixels[ids]) == self._marks[ids]
        return Batch(images, self._labels[ids], ids, sound)

    def fetch_next(self) -> None:
        """There is nothing to fetch: all pictures lie on the device."""

    def state(self) -> list[Tensor]:
        return [self._position]

    def problem(self) -> None:
        """There can be no problem: no processes, and no copies."""

    def close(self) -> None:
        """There is nothing to release but memory."""


def byte_sums(pixels: Tensor) -> Tensor:
    """int64 [n]: the sum over the bytes of every picture, uint8 [n, ...]."""
    return pixels.flatten(1).sum(1, dtype=torch.int64)


def byte_sums_on_host(pixels: Tensor) -> Tensor:
    """`byte_sums` in a tenth of the time that PyTorch takes on a CPU."""
    return torch.from_numpy(pixels.numpy().reshape(len(pixels), -1).sum(1, dtype=np.int64))


def image_maker(pictures: Pictures, side_pixels: int, recipe: Recipe, device: torch.device) -> Callable[..., Tensor]:
    """A function from padded bytes [all, 3, h + 8, w + 8] to the images of a batch; compiled, two small kernels."""
    height, width = pictures.pixels.shape[-2:]
    rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
    scale, shift = normalization(device)
    half, layout, missing = recipe.half or torch.float32, recipe.layout, recipe.stem_channels - 3

    def images(pixels: Tensor, ids: Tensor, tops: Tensor, lefts: Tensor, flips: Tensor) -> Tensor:
        across = torch.where(flips[:, None], width - 1 - columns, columns)
        down = (tops[:, None] + rows)[:, :, None]  # [n, height, 1]
        right = (lefts[:, None] + across)[:, None, :]  # [n, 1, width]
        cropped = pixels[ids[:, None, None], :, down, right]  # [n, height, width, 3]
        # Normalized at its small size: resizing is linear, so that the order changes the time alone.
        small = cropped.permute(0, 3, 1, 2).float() * scale + shift
        if side_pixels != height:
            small = F.interpolate(small, size=side_pixels, mode="bilinear", align_corners=False)
        return padded_channels(small, missing).to(dtype=half, memory_format=layout)

    return images

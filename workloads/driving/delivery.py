"""The order in which frames are trained on, and the record of the frames that reached the device.

The record is computed on the device, from the tensors that a training step has just used: a frame that was lost,
doubled, swapped or overwritten while it was copied shows in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

EPOCHS = 16  # of different order; then they repeat
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # by channel, of pictures between 0 and 1


class Batch(NamedTuple):
    """Some frames, on the host or on the device; `images` is uint8, or float32 where the host has normalized it."""

    images: Tensor  # [batch, cameras, 3, height, width]
    commands: Tensor  # int64 [batch]
    waypoints: Tensor  # float32 [batch, WAYPOINTS, 2]
    indices: Tensor  # int64 [batch], the frame numbers


def order_table(frames: int, seed: int) -> Tensor:
    """The order of training, int64 [EPOCHS * frames]: every epoch is a permutation of its own."""
    random = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randperm(frames, generator=random) for _ in range(EPOCHS)])


class BatchOrder:
    """Endless lists of frame numbers, beginning at position `start` of the table."""

    def __init__(self, table: Tensor, batch: int, start: int = 0) -> None:
        self.batch = batch
        self._table, self._start = table.tolist(), start

    def __iter__(self) -> Iterator[list[int]]:
        position = self._start
        while True:
            yield [self._table[(position + place) % len(self._table)] for place in range(self.batch)]
            position += self.batch


class Place:
    """A place in the order that lives on the device, so that no step waits for the host or copies from it."""

    def __init__(self, table: Tensor, batch: int, device: torch.device) -> None:
        self._table = table.to(device)
        self._offsets = torch.arange(batch, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)

    def next(self) -> Tensor:
        """The next frame numbers of the order, int64 [batch]."""
        turn = self._table[(self.position + self._offsets) % len(self._table)]
        self.position += len(self._offsets)
        return turn


class Delivery:
    """Checks every batch against the order and the frames' checksums.

    `sums` is int64 [frames, cameras]. A picture's sum may differ by `levels` per byte, since another JPEG decoder
    rounds differently; everything else must be exact.
    """

    def __init__(self, table: Tensor, sums: Tensor, batch: int, device: torch.device, levels: float = 0.0) -> None:
        self._place, self._sums, self._levels = Place(table, batch, device), sums.to(device), levels

    @property
    def state(self) -> Tensor:
        """The tensor that a record changes: int64 [], the place in the order."""
        return self._place.position

    def skip(self) -> None:
        """Skips one batch, which was used for another purpose."""
        self._place.next()

    def record(self, batch: Batch, loss: Tensor) -> Tensor:
        """float32 [batch, 3], each 1 or 0: the frame is the expected one, it is intact, and its loss is finite."""
        expected = self._place.next()
        off = (picture_sums(batch.images) - self._sums[expected]).abs()
        intact = (off <= self._levels * batch.images[0, 0].numel()).all(1)
        finite = loss.isfinite().expand_as(intact)
        return torch.stack((batch.indices == expected, intact, finite), dim=1).float()


def picture_sums(images: Tensor) -> Tensor:
    """int64 [batch, cameras]: the sum of every picture's bytes; for a normalized picture, of its original bytes."""
    if images.dtype == torch.uint8:
        return images.flatten(2).sum(2, dtype=torch.int64)
    mean, std = _by_channel(MEAN, images), _by_channel(STD, images)
    # Exact: a byte is recovered to much better than 0.5, and sums of bytes are far below 2^53.
    return torch.addcmul(mean, images, std).round_().flatten(2).sum(2, dtype=torch.float64).to(torch.int64)


def normalized(images: Tensor) -> Tensor:
    """float32 of the same shape [..., 3, height, width], zero mean and unit variance; also what the host computes."""
    return (images.float() - _by_channel(MEAN, images)) / _by_channel(STD, images)


def _by_channel(values: tuple[float, float, float], images: Tensor) -> Tensor:
    """float32 [3, 1, 1] in bytes, on the images' device, filled there: nothing crosses the bus."""
    return torch.stack([torch.full((1, 1), 255 * value, device=images.device) for value in values])

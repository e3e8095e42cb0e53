"""Data path from host memory to a training step: a DataLoader crops, mirrors and resizes pictures.

Two chains of torchvision's transforms prepare a picture: the classic one, which makes normalized floats of a PIL image,
and version 2 on bytes, which the device normalizes.

Every picture travels with three numbers: its label, its id, and a mark, the sum over the bits of a grid of its values.
The numbers that the device computes of the received picture must equal them.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workloads.parts.loader_workers import dead_workers, end_workers, workers_of
from workloads.parts.shared_memory import check_shared_memory
from workloads.parts.stages import stage
from workloads.resnet18_training.cifar import Pictures
from workloads.resnet18_training.sample_order import PADDING, SampleOrder

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # CIFAR-10's own, of values from 0 to 1
LABEL, ID, MARK = range(3)  # the columns of the numbers that travel with a picture
GRID_PIXELS = 16  # the distance, in both directions, of the pixels that count for a mark
PREFETCH_FACTOR = 2  # pieces that every worker has ready or in preparation
STUCK_S = 20.0  # a piece takes milliseconds: a worker silent for this long has failed


class Batch(NamedTuple):
    """A batch on the device. `sound` is bool [n]: the received picture matches the numbers of the host."""

    images: Tensor  # [n, channels, side, side]: normalized floats, or bytes
    labels: Tensor  # int64 [n]
    ids: Tensor  # int64 [n]
    sound: Tensor


def checked(images: Tensor, told: Tensor) -> Batch:
    """A batch from a loader's images, float32 [n, 3, side, side] or uint8 [n, side, side, 3], and int64 [n, 3], their
    labels, ids and marks."""
    if images.dtype is torch.uint8:
        images = images.permute(0, 3, 1, 2)
    return Batch(images, told[:, LABEL], told[:, ID], marks_of(images) == told[:, MARK])


def padded(pixels: Tensor) -> Tensor:
    """uint8 [n, 3, height + 8, width + 8]: black around every picture, so that a crop is a view."""
    return F.pad(pixels, (PADDING,) * 4)


def normalization(device: torch.device) -> tuple[Tensor, Tensor]:
    """The factor and the offset that normalize a byte; float32 [3, 1, 1] each."""
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))
    return 1 / (255 * std), -mean / std


def marks_of(images: Tensor) -> Tensor:
    """int64 [n]: the exact sum over the bits, read as integers, of the grid of every image [n, 3, h, w]."""
    bits = images if images.dtype is torch.uint8 else images.view(torch.int32)
    return bits[:, :, ::GRID_PIXELS, ::GRID_PIXELS].sum((1, 2, 3))


def classic_transforms(side_pixels: int) -> Callable[[Tensor], Tensor]:
    """The chain of torchvision's examples: from bytes [h, w, 3] to normalized float32 [3, side_pixels, side_pixels]."""
    from PIL import Image  # here, since these imports take a second, which collecting tests should not pay
    from torchvision import transforms

    steps = [transforms.Resize(side_pixels), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    chain = transforms.Compose(steps)

    def prepare(picture: Tensor) -> Tensor:
        image: Tensor = chain(Image.fromarray(picture.numpy()))
        return image

    return prepare


def byte_transforms(side_pixels: int) -> Callable[[Tensor], Tensor]:
    """Version 2 of torchvision's transforms: from bytes [h, w, 3] to bytes [3, side_pixels, side_pixels]."""
    from torchvision.transforms.v2 import functional

    def prepare(picture: Tensor) -> Tensor:
        # Dense in memory with the channels last, a picture is resized faster than with each channel by itself.
        image: Tensor = functional.resize(picture.contiguous().permute(2, 0, 1), [side_pixels, side_pixels])
        return image

    return prepare


class PreparedPictures(Dataset[tuple[Tensor, Tensor]]):
    """Pictures by position in the order: the image, and its label, id and mark, int64 [3].

    An image is float32 [3, side, side], normalized, by the classic transforms; or uint8 [side, side, 3], a quarter of
    the bytes, by version 2.
    """

    def __init__(self, pictures: Pictures, order: SampleOrder, side_pixels: int, uint8: bool = False) -> None:
        self._pixels = padded(pictures.pixels).permute(0, 2, 3, 1).contiguous()  # [n, height + 8, width + 8, 3]
        self._labels, self._order, self._uint8 = pictures.labels, order, uint8
        self._height, self._width = pictures.pixels.shape[-2:]
        self._prepare = byte_transforms(side_pixels) if uint8 else classic_transforms(side_pixels)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        order = self._order
        id_, top, left = int(order.ids[position]), int(order.tops[position]), int(order.lefts[position])
        picture = self._pixels[id_, top : top + self._height, left : left + self._width]
        image = self._prepare(picture.flip(1) if order.flips[position] else picture)
        told = torch.tensor([int(self._labels[id_]), id_, int(marks_of(image[None]))])
        return (image.permute(1, 2, 0) if self._uint8 else image), told


class Pieces(Iterator[tuple[Tensor, Tensor]]):
    """Pieces of `piece` images and their numbers [piece, 3], in order, without end.

    `workers` processes prepare them; with 0 workers the caller does. `unpinned` counts tensors that were requested in
    page-locked memory and are not. Raises OSError where shared memory is too small for the pieces that workers keep
    ready; a worker that dies, raises or stops responding ends the iteration with a RuntimeError that says so.
    """

    def __init__(self, pictures: PreparedPictures, piece: int, workers: int, pinned: bool) -> None:
        self.unpinned = 0
        self._pinned, self._workers, self._piece = pinned, workers, piece
        held = workers * PREFETCH_FACTOR + 1 if workers else 0  # and the piece in use
        check_shared_memory(held * piece * pictures[0][0].nbytes)
        self._iterator: Any = _iterator(_loader(pictures, piece, workers, pinned))

    def __next__(self) -> tuple[Tensor, Tensor]:
        with stage("__next__", self._piece):
            images, told = self._received()
        if self._pinned:
            self.unpinned += sum(not tensor.is_pinned() for tensor in (images, told))  # cuda only
        return images, told

    def _received(self) -> tuple[Tensor, Tensor]:
        try:
            piece: tuple[Tensor, Tensor] = next(self._iterator)
        except (ConnectionError, EOFError) as error:  # the worker ended while it sent a piece
            dead_workers(self._iterator)
            raise RuntimeError(f"a worker process of the loader died ({type(error).__name__})") from error
        return piece

    def problem(self) -> str | None:
        """The reason why these are not the requested pieces, or None."""
        alive = sum(process.is_alive() for process in workers_of(self._iterator))
        if alive != self._workers:
            return f"{alive} of {self._workers} worker processes are alive"
        return f"{self.unpinned} tensors of the loader are pageable" if self.unpinned else None

    def close(self) -> None:
        iterator, self._iterator = self._iterator, iter(())
        end_workers(iterator)


def _loader(pictures: PreparedPictures, piece: int, workers: int, pinned: bool) -> DataLoader[tuple[Tensor, Tensor]]:
    """The loader; forked workers begin in milliseconds and share the pictures, and use no device."""
    positions = itertools.cycle(range(first, first + piece) for first in range(0, len(pictures) - piece + 1, piece))
    with_workers = {"prefetch_factor": PREFETCH_FACTOR, "timeout": STUCK_S, "multiprocessing_context": "fork"}
    how: dict[str, Any] = with_workers if workers else {}
    how |= {"generator": torch.Generator()}  # nothing is random, but it would draw from the global one
    # An iterator as batch_sampler: positions never end, so the workers never run out at the end of an epoch.
    return DataLoader(pictures, batch_sampler=positions, num_workers=workers, pin_memory=pinned, **how)  # type: ignore[arg-type]


def _iterator(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    with warnings.catch_warnings():
        # Python 3.12 warns of any fork beside threads; these children compute on their own data, and take no lock.
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        return iter(loader)

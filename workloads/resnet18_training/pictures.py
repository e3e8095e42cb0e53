"""Small colour pictures in ten classes, and their two ways to a training step: a DataLoader, or all on the device.

The pictures are CIFAR-10 where the setting `cifar10` names it, else pictures from a seed. The order of the pictures,
with their crops and mirrorings, is drawn once, the same for every rung.

In a DataLoader two chains of torchvision's transforms prepare pictures: the classic one, which makes normalized floats
of one PIL image after the other, and version 2, which resizes the bytes of a whole piece at once and leaves normalizing
to the device. Every picture travels with three numbers: its label, its id, and a mark, the sum over the bits of a grid
of its values. The numbers that the device computes of the received picture must equal them.

On the device the pictures lie as bytes: a batch is gathered, cropped, mirrored, normalized and resized there. CIFAR-10
with its padding is 240 MB; as float32 images of 224 x 224, a loader's format, it would be 30 GB.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from gpugate.workload import Context
from workloads.parts.loader import HostBatches, Prefetcher
from workloads.parts.resnet_layers import padded_channels
from workloads.parts.stages import stage
from workloads.parts.trainer import nothing

CIFAR10_SETTING = {"cifar10": "a folder of CIFAR-10's python batches to train on"}
CLASSES, CHANNELS, SIDE_PIXELS = 10, 3, 32
VALUES = CHANNELS * SIDE_PIXELS * SIDE_PIXELS  # of one picture
PICTURES = 50_000  # to train on

# A seeded picture is the smooth pattern of its class around grey, plus noise of equal strength: no single pixel shows
# the class, and a net learns it within some hundred steps.
PATTERN_CELLS, STRENGTH, GREY = 4, 40.0, 128
NOISE_VALUES = 2**20
PICTURES_AT_ONCE = 5_000


@dataclass(frozen=True)
class Pictures:
    """`pixels` is uint8 [n, 3, height, width] in RGB, `labels` int64 [n] from 0 to 9; both on the host."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def training_pictures(context: Context) -> Pictures:
    """The 50,000 training pictures, read or drawn once a process.

    Raises ValueError, in one sentence, for a folder that does not hold CIFAR-10.
    """
    if "cifar10" not in context.settings:
        return seeded_pictures(context.seed, PICTURES)
    return read_cifar10(Path(context.settings["cifar10"]))


@functools.lru_cache(maxsize=4)
def seeded_pictures(seed: int, count: int) -> Pictures:
    """`count` pictures [count, 3, 32, 32] in ten classes that can be learned; they depend on the arguments alone."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randn(CLASSES, CHANNELS, PATTERN_CELLS, PATTERN_CELLS, generator=generator)
    smooth = F.interpolate(cells, size=SIDE_PIXELS, mode="bicubic").flatten(1)  # [10, 3072]
    patterns = (STRENGTH * smooth + GREY).to(torch.int16)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    # Every picture gets its own window of one long row of noise: drawing all of it would take seconds.
    noise = (STRENGTH * torch.randn(NOISE_VALUES, generator=generator)).to(torch.int16)
    windows = noise.unfold(0, VALUES, 1)  # [.., 3072], a view
    starts = torch.randint(len(windows), (count,), generator=generator)
    pixels = torch.empty(count, VALUES, dtype=torch.uint8)
    for first in range(0, count, PICTURES_AT_ONCE):
        some = slice(first, first + PICTURES_AT_ONCE)
        pixels[some] = windows[starts[some]].add_(patterns[labels[some]]).clamp_(0, 255).to(torch.uint8)
    return Pictures(pixels.view(count, CHANNELS, SIDE_PIXELS, SIDE_PIXELS), labels)


@functools.lru_cache(maxsize=2)
def read_cifar10(folder: Path) -> Pictures:
    """The training pictures of CIFAR-10, whose archive was unpacked in `folder` or to it.

    The files are pickles, which may run code: torchvision compares their MD5 sums with the published ones first. Raises
    ValueError, in one sentence, where a file is missing or another one.
    """
    from torchvision.datasets import CIFAR10

    root = folder.parent if folder.name == CIFAR10.base_folder else folder
    try:
        found = CIFAR10(root)
    except RuntimeError as error:
        whole = f"has not all files of CIFAR-10 in {CIFAR10.base_folder}, as they were published"
        raise ValueError(f"--perf-set cifar10={folder} {whole}: unpack cifar-10-python.tar.gz there again") from error
    return Pictures(torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(found.targets))


PADDING = 4  # pixels around a picture, so that a crop of its own size can lie up to so many off its middle
EPOCHS = 4  # then the order repeats: a training of this suite lasts seconds


class SampleOrder(NamedTuple):
    """The picture id, the place of the crop in the padded picture, and the mirroring at every position; [positions]."""

    ids: Tensor  # int64
    tops: Tensor  # int64, from 0 to 2 * PADDING
    lefts: Tensor  # int64, from 0 to 2 * PADDING
    flips: Tensor  # bool


def sample_order(seed: int, pictures: int, multiple: int, mirrored: bool = True) -> SampleOrder:
    """EPOCHS shuffles of `pictures` ids, each cut to a multiple of `multiple` positions: no batch straddles two.

    Depends on the arguments alone.
    """
    generator = torch.Generator().manual_seed(seed)
    kept = pictures // multiple * multiple
    ids = torch.cat([torch.randperm(pictures, generator=generator)[:kept] for _ in range(EPOCHS)])
    tops, lefts = (torch.randint(2 * PADDING + 1, (len(ids),), generator=generator) for _ in range(2))
    flips = torch.randint(2, (len(ids),), generator=generator).bool()
    return SampleOrder(ids, tops, lefts, flips if mirrored else torch.zeros_like(flips))


MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # CIFAR-10's own, of values from 0 to 1
LABEL, ID, MARK = range(3)  # the columns of the numbers that travel with a picture
GRID_PIXELS = 16  # the distance, in both directions, of the pixels that count for a mark
AHEAD = 2  # pieces that every worker has ready or in preparation


class Batch(NamedTuple):
    """A batch on the device. `sound` is bool [n]: the received picture matches the numbers of the host."""

    images: Tensor  # [n, channels, side, side]: normalized floats, or bytes
    labels: Tensor  # int64 [n]
    ids: Tensor  # int64 [n]
    sound: Tensor


@dataclass(frozen=True)
class Source:
    """A source of batches on the device; `state` has every tensor on the device that `take` changes.

    `fetch_next` copies the batch after the current one, where the source does so ahead of its use.
    """

    take: Callable[[], Batch]
    fetch_next: Callable[[], None] = nothing
    close: Callable[[], None] = nothing
    state: tuple[Tensor, ...] = ()
    waits_ms: Callable[[], Sequence[float]] | None = None  # for the loader


def checked(images: Tensor, told: Tensor) -> Batch:
    """A batch from a loader's images, float32 [n, 3, side, side] or uint8 [n, side, side, 3], and int64 [n, 3], their
    labels, ids and marks."""
    if images.dtype is torch.uint8:
        images = images.permute(0, 3, 1, 2)
    return Batch(images, told[:, LABEL], told[:, ID], marks_of(images) == told[:, MARK])


def padded(pixels: Tensor) -> Tensor:
    """uint8 [n, 3, height + 8, width + 8]: black around every picture, so that a crop is a view."""
    return F.pad(pixels, (PADDING,) * 4)


def cropped(pixels: Tensor, ids: Tensor, tops: Tensor, lefts: Tensor, flips: Tensor) -> Tensor:
    """uint8 [n, height, width, 3]: the crops at these places, mirrored where `flips` says so, of padded pixels
    [all, 3, height + 8, width + 8]."""
    height, width = (side - 2 * PADDING for side in pixels.shape[-2:])
    rows, columns = torch.arange(height, device=ids.device), torch.arange(width, device=ids.device)
    across = torch.where(flips[:, None], width - 1 - columns, columns)
    down = (tops[:, None] + rows)[:, :, None]  # [n, height, 1]
    right = (lefts[:, None] + across)[:, None, :]  # [n, 1, width]
    return pixels[ids[:, None, None], :, down, right]


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


class PreparedPictures(Dataset[tuple[Tensor, Tensor]]):
    """Pictures by position in the order: the image, float32 [3, side, side], and its label, id and mark, int64 [3]."""

    def __init__(self, pictures: Pictures, order: SampleOrder, side_pixels: int) -> None:
        self._pixels = padded(pictures.pixels).permute(0, 2, 3, 1).contiguous()  # [n, height + 8, width + 8, 3]
        self._labels, self._order = pictures.labels, order
        self._height, self._width = pictures.pixels.shape[-2:]
        self._prepare = classic_transforms(side_pixels)

    def __len__(self) -> int:
        return len(self._order.ids)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        order = self._order
        id_, top, left = int(order.ids[position]), int(order.tops[position]), int(order.lefts[position])
        picture = self._pixels[id_, top : top + self._height, left : left + self._width]
        image = self._prepare(picture.flip(1) if order.flips[position] else picture)
        return image, torch.tensor([int(self._labels[id_]), id_, int(marks_of(image[None]))])


class PreparedPieces(Dataset[tuple[Tensor, Tensor]]):
    """Pictures by several positions in the order: the images, uint8 [n, side, side, 3], a quarter of the bytes of
    floats, and their labels, ids and marks, int64 [n, 3]."""

    def __init__(self, pictures: Pictures, order: SampleOrder, side_pixels: int) -> None:
        from torchvision.transforms.v2.functional import resize  # its import takes a second

        self._pixels, self._labels, self._order = padded(pictures.pixels), pictures.labels, order
        self._resize = functools.partial(resize, size=[side_pixels, side_pixels])

    def __len__(self) -> int:
        return len(self._order.ids)

    def __getitems__(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        ids, tops, lefts, flips = (each[list(positions)] for each in self._order)
        # Dense in memory with the channels last, pictures are resized faster than with each channel by itself.
        images = self._resize(cropped(self._pixels, ids, tops, lefts, flips).permute(0, 3, 1, 2))
        return images.permute(0, 2, 3, 1), torch.stack((self._labels[ids], ids, marks_of(images)), 1)


def load_pieces(
    pictures: PreparedPictures | PreparedPieces, piece: int, workers: int, pinned: bool
) -> HostBatches[tuple[Tensor, Tensor]]:
    """Pieces of `piece` images and their numbers [piece, 3], in order, without end: workers never run out."""
    positions = itertools.cycle(range(first, first + piece) for first in range(0, len(pictures) - piece + 1, piece))
    collate = tuple if isinstance(pictures, PreparedPieces) else None  # such a piece is whole already
    return HostBatches(pictures, positions, workers, AHEAD, pinned, collate)


def take_loaded(
    pieces: HostBatches[tuple[Tensor, Tensor]], each: int, non_blocking: bool, device: torch.device
) -> Source:
    """Batches of `each` pieces, copied on request, on the stream that computes."""

    def copied() -> tuple[Tensor, Tensor]:
        images, told = next(pieces)
        with stage("copy", len(images)):
            return images.to(device, non_blocking=non_blocking), told.to(device, non_blocking=non_blocking)

    def take() -> Batch:
        parts = [copied() for _ in range(each)]
        if len(parts) == 1:
            return checked(*parts[0])
        images, told = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return checked(images, told)

    return Source(take, close=pieces.close, waits_ms=pieces.take_waits_ms)


def take_prefetched(pieces: HostBatches[tuple[Tensor, Tensor]], each: int, batch: int, device: torch.device) -> Source:
    """Batches of `each` pieces, copied on a stream of their own while the batch before is in use."""
    prefetcher = Prefetcher(pieces, device, each)

    def fetch_next() -> None:
        with stage("prefetch", batch):  # the next batch's pieces, and its copies
            prefetcher.copy_next()

    def close() -> None:
        prefetcher.close()
        pieces.close()

    return Source(lambda: checked(*prefetcher.take(ahead=False)), fetch_next, close, waits_ms=pieces.take_waits_ms)


def take_resident(
    pictures: Pictures, order: SampleOrder, batch: int, make_images: Callable[..., Tensor], device: torch.device
) -> Source:
    """A source whose every batch is device work alone: also the position in the order lies on the device.

    So the calls can be captured in a CUDA graph, and every replay takes the next batch. `make_images` is the function
    of `image_maker`, compiled or not.
    """
    host_pixels = padded(pictures.pixels)
    ids, tops, lefts, flips = (each.to(device) for each in order)
    pixels, labels = host_pixels.to(device), pictures.labels.to(device)
    marks = byte_sums_on_host(host_pixels).to(device)  # by id
    steps, position = torch.arange(batch, device=device), torch.zeros((), dtype=torch.int64, device=device)

    def take() -> Batch:
        at = (position + steps) % len(ids)
        position.add_(batch)
        chosen = ids[at]
        images = make_images(pixels, chosen, tops[at], lefts[at], flips[at])
        return Batch(images, labels[chosen], chosen, byte_sums(pixels[chosen]) == marks[chosen])

    return Source(take, state=(position,))


def byte_sums(pixels: Tensor) -> Tensor:
    """int64 [n]: the sum over the bytes of every picture, uint8 [n, ...]."""
    return pixels.flatten(1).sum(1, dtype=torch.int64)


def byte_sums_on_host(pixels: Tensor) -> Tensor:
    """`byte_sums` in a tenth of the time that PyTorch takes on a CPU."""
    return torch.from_numpy(pixels.numpy().reshape(len(pixels), -1).sum(1, dtype=np.int64))


def image_maker(
    pictures: Pictures,
    side_pixels: int,
    channels: int,
    dtype: torch.dtype,
    layout: torch.memory_format,
    device: torch.device,
) -> Callable[..., Tensor]:
    """A function from padded bytes [all, 3, h + 8, w + 8] to the images of a batch; compiled, two small kernels.

    Channels beyond the third are zeros.
    """
    height, (scale, shift) = pictures.pixels.shape[-2], normalization(device)

    def images(pixels: Tensor, ids: Tensor, tops: Tensor, lefts: Tensor, flips: Tensor) -> Tensor:
        # Normalized at its small size: resizing is linear, so that the order changes the time alone.
        small = cropped(pixels, ids, tops, lefts, flips).permute(0, 3, 1, 2).float() * scale + shift
        if side_pixels != height:
            small = F.interpolate(small, size=side_pixels, mode="bilinear", align_corners=False)
        return padded_channels(small, channels - 3).to(dtype=dtype, memory_format=layout)

    return images

"""Batches of driving frames on the device: sources of them, their order, and the record of the frames that arrived.

The sources from the slowest to the fastest: blocking copies, page-locked buffers, copies on a stream of their own,
frames that lie on the device already.

The record is computed on the device, from the tensors that a training step has just used: a frame that was lost,
doubled, swapped or overwritten while it was copied shows in it.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from workloads.driving.frames import Frames
from workloads.parts.loader import HostBatches, Prefetcher

AHEAD = 1  # batches that each worker has ready, so that little is in stock
PINNED_SLOTS = 3  # one is filled, one is copied, one is in use
# torchvision uses the decoding engine, and works without it only where a GPU has none: not where a container hides it.
TO_DECODE_JPEGS = (
    "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video, or install a CUDA build of torchvision"
)
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


def batch_order(table: Tensor, batch: int, start: int = 0) -> Iterator[list[int]]:
    """Endless lists of frame numbers, beginning at position `start` of the table."""
    numbers = table.tolist()
    for position in itertools.count(start, batch):
        yield [numbers[(position + place) % len(numbers)] for place in range(batch)]


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
        self.place, self._sums, self._levels = Place(table, batch, device), sums.to(device), levels

    def record(self, batch: Batch, loss: Tensor) -> Tensor:
        """float32 [batch, 3], each 1 or 0: the frame is the expected one, it is intact, and its loss is finite."""
        expected = self.place.next()
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


@dataclass(frozen=True)
class FrameSet(Dataset[Batch]):
    """Single frames in the form that `read` names: uint8 or float32 [cameras, 3, height, width]."""

    frames: Frames
    read: Literal["normalized", "bytes", "jpeg"] = "bytes"

    def __getitem__(self, frame: int) -> Batch:
        frames = self.frames
        pictures = frames.decoded(frame) if self.read == "jpeg" else frames.raw[frame]
        pictures = normalized(pictures) if self.read == "normalized" else pictures
        return Batch(pictures, frames.commands[frame], frames.waypoints[frame], torch.tensor(frame))


def _stacked(frames: list[Batch]) -> Batch:
    return Batch(*map(torch.stack, zip(*frames, strict=True)))


@dataclass(frozen=True)
class Source:
    """A source of batches on the device.

    `take` returns the next batch, ready on the current stream. `close` ends workers and frees buffers. `stock` is the
    number of batches that may be ready before they are requested, `state` every tensor on the device that `take`
    changes.
    """

    take: Callable[[], Batch]
    close: Callable[[], object]
    stock: int = 0
    state: tuple[Tensor, ...] = ()


def blocking(
    frame_set: FrameSet, order: Iterator[list[int]], workers: int, device: torch.device, pinned: bool = False
) -> Source:
    """Copies that each wait for all earlier work of the device; `pinned`: the loader puts its batches into page-locked
    memory, one more copy on the host, and no copy to the device waits."""
    batches = HostBatches(frame_set, order, workers, AHEAD, pinned, _stacked)
    take = lambda: Batch(*(tensor.to(device, non_blocking=pinned) for tensor in next(batches)))  # noqa: E731
    return Source(take, batches.close, stock=AHEAD * workers)


def prefetched(frames: Frames, order: Iterator[list[int]], batch: int, device: torch.device) -> Source:  # cuda only
    """Copies out of page-locked memory on a stream of their own, while the previous batch is used.

    The buffers are filled with frames straight from the file, the only copy on the host, and in turn: one is filled
    again when the device has finished with its last content. The prefetcher requests a batch before it has enqueued all
    work that reads the batch before.
    """

    def staged() -> Iterator[Batch]:
        example = _stacked([FrameSet(frames)[0]] * batch)
        slots = [
            (Batch(*(torch.empty_like(each, pin_memory=True) for each in example)), torch.cuda.Event())  # type: ignore[no-untyped-call]
            for _ in range(PINNED_SLOTS)
        ]
        lent: deque[torch.cuda.Event] = deque()
        for buffers, done in itertools.cycle(slots):
            if len(lent) > 1:
                lent.popleft().record()
            done.synchronize()  # also where the event is over: each step waits as often
            buffers.indices.copy_(torch.tensor(next(order)))
            for buffer, stored in zip(buffers[:3], (frames.raw, frames.commands, frames.waypoints), strict=True):
                torch.index_select(stored, 0, buffers.indices, out=buffer)
            lent.append(done)
            yield buffers

    prefetcher = Prefetcher(staged(), device)
    return Source(lambda: Batch(*prefetcher.take()), prefetcher.close, stock=1)


def resident(frames: Frames, table: Tensor, batch: int, device: torch.device) -> Source:
    """All frames lie on the device, as bytes, and so does the order: no step copies anything or waits for the host."""
    images, commands, waypoints = (each.to(device) for each in (frames.raw, frames.commands, frames.waypoints))
    place = Place(table, batch, device)

    def take() -> Batch:
        turn = place.next()
        labels = commands.index_select(0, turn), waypoints.index_select(0, turn)
        return Batch(images.index_select(0, turn), *labels, turn)

    return Source(take, lambda: None, state=(place.position,))


def nvjpeg(frames: Frames, order: Iterator[list[int]], device: torch.device) -> Source:  # cuda only
    """JPEGs cross the bus and the GPU decodes them, where `why_no_jpeg` finds no obstacle."""
    from torchvision.io import ImageReadMode, decode_jpeg

    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def decoded(numbers: list[int]) -> Tensor:
        """uint8 [frames, cameras, 3, height, width]."""
        encoded = [jpeg for number in numbers for jpeg in frames.jpegs[number]]
        pictures = torch.stack(decode_jpeg(encoded, ImageReadMode.RGB, device))
        return pictures.view(len(numbers), *frames.raw.shape[1:])

    def take() -> Batch:
        numbers = next(order)
        indices = torch.tensor(numbers)
        labels = (frames.commands[indices], frames.waypoints[indices], indices)
        current = torch.cuda.current_stream(device)
        # torchvision decodes on a stream of its own and never waits for the last user of the memory of its results. On
        # our stream, with its own share of the allocator, that user can only be the stacking of an earlier batch.
        stream.synchronize()
        with torch.cuda.stream(stream):
            batch = Batch(decoded(numbers), *(label.to(device) for label in labels))
        current.wait_stream(stream)
        for tensor in batch:
            tensor.record_stream(current)
        return batch

    return Source(take, lambda: torch.cuda.synchronize(device))


@functools.cache
def why_no_jpeg(gpu: int) -> str | None:
    """One sentence why this GPU, by CUDA's index, decodes no JPEG, with the next step; None if it decodes.

    One picture is decoded in this process, once: a failing nvJPEG leaves CUDA as it was.
    """
    from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg

    grey = encode_jpeg(torch.full((3, 256, 256), 128, dtype=torch.uint8))
    try:
        decode_jpeg(grey, ImageReadMode.RGB, device=torch.device("cuda", gpu))
    except (RuntimeError, AttributeError) as error:  # the latter where torchvision was built without CUDA
        said = str(error).strip().partition("\n")[0] or "no message"
        return f"GPU {gpu} decodes no JPEG ({said}): {TO_DECODE_JPEGS}"
    return None

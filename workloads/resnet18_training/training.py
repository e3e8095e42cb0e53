"""The rungs of the training of ResNet-18, and the loop that trains by a rung and records which pictures it consumed.

A step gets a stamp for each item. It returns the stamp unchanged for an item that was consumed in its place and intact,
and negated for any other: an output that is wrong, stale or invented does not match.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import Context, Side
from workloads.parts.compiled import NHWC
from workloads.parts.loader import HostBatches
from workloads.parts.resnet_layers import PaddedStem, ParityPool
from workloads.parts.trainer import Recipe, Trainer, nothing
from workloads.resnet18_training import pictures as data
from workloads.resnet18_training.pictures import Batch, Pictures, SampleOrder, Source

ITEMS, ITEMS_ON_CPU = 512, 32  # pictures of one step on every rung: one large batch, or several small ones
LEARNING_RATE, LEARNING_RATE_BATCH = 0.01, 32  # grows with the root of the batch, as the noise of its gradient falls


@dataclass(frozen=True)
class Rung:
    """The settings of a training: the source of its batches, and the recipe of its computation.

    The loader sends pieces of `piece` pictures on every rung, and a larger batch is joined on the device: the loader's
    stock stays one step.
    """

    workers: int = 0
    pinned: bool = False
    non_blocking: bool = False
    uint8: bool = False  # torchvision's v2 resizes a piece of bytes at once, and the device normalizes them
    batch: int = 32
    prefetched: bool = False
    resident: bool = False
    whole_graph: bool = False
    recipe: Recipe = Recipe()
    piece: int = 32
    side_pixels: int = 224

    def stock_steps(self, items: int) -> int:
        """The largest number of steps whose data workers, and a copy stream, have ready."""
        pictures = self.workers * data.AHEAD * self.piece + (self.batch if self.prefetched else 0)
        return math.ceil(pictures / items)


# Each rung is the rung before it with one change.
BOTTOM = Rung()
WORKERS = replace(BOTTOM, workers=8)
PINNED = replace(WORKERS, pinned=True)
NON_BLOCKING = replace(PINNED, non_blocking=True)
UINT8 = replace(NON_BLOCKING, uint8=True)
LARGE_BATCH = replace(UINT8, batch=ITEMS)
HALF = replace(LARGE_BATCH, recipe=Recipe(torch.float16))
COMPILED = replace(HALF, recipe=Recipe(torch.float16, compiled=True))
COPY_STREAM = replace(COMPILED, prefetched=True)
CHANNELS_LAST = replace(COPY_STREAM, recipe=replace(COMPILED.recipe, layout=NHWC, autotuned=True))
RESIDENT = Rung(batch=ITEMS, resident=True, recipe=replace(CHANNELS_LAST.recipe, stem_channels=4))
WHOLE_STEP = replace(
    RESIDENT, whole_graph=True, recipe=replace(RESIDENT.recipe, fused=True, gathered_pool=True, tuned=True)
)

CPU_BOTTOM = Rung(batch=8, piece=8, side_pixels=32)
CPU_WORKERS = replace(CPU_BOTTOM, workers=2)
CPU_HALF = replace(CPU_WORKERS, recipe=Recipe(torch.bfloat16))
CPU_LARGE_BATCH = replace(CPU_HALF, batch=ITEMS_ON_CPU)
CPU_COMPILED = replace(CPU_LARGE_BATCH, recipe=Recipe(torch.bfloat16, compiled=True))


def load(pictures: Pictures, order: SampleOrder, rung: Rung) -> HostBatches[tuple[Tensor, Tensor]]:
    """The loader of a rung: pieces of images and of their numbers."""
    prepared = (data.PreparedPieces if rung.uint8 else data.PreparedPictures)(pictures, order, rung.side_pixels)
    return data.load_pieces(prepared, rung.piece, rung.workers, rung.pinned)


def architecture(classes: int) -> nn.Module:
    """torchvision's ResNet-18 without weights; its import takes a second, which collecting tests should not pay."""
    from torchvision.models import resnet18

    model: nn.Module = resnet18(weights=None, num_classes=classes)
    return model


def net(seed: int, recipe: Recipe) -> nn.Module:
    """ResNet-18 with seeded FP32 weights and ten classes, in training mode, on the host."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = architecture(data.CLASSES)
    if recipe.stem_channels > 3:
        model.conv1 = PaddedStem(model.conv1, recipe.stem_channels)  # type: ignore[arg-type]
    if recipe.gathered_pool:
        model.maxpool = ParityPool()
    return model


class PictureTrainer(Trainer):
    """Training of ResNet-18; calling it with a batch is one iteration."""

    def __init__(self, context: Context, recipe: Recipe, batch: int) -> None:
        rate = LEARNING_RATE * (batch / LEARNING_RATE_BATCH) ** 0.5
        super().__init__(net(context.seed, recipe), recipe, rate, context.device)
        model, kind, half, layout = self.model, context.device.type, recipe.half, recipe.layout
        scale, shift = data.normalization(context.device)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            if images.dtype is torch.uint8:
                images = images * scale + shift
            with torch.autocast(kind, dtype=half, enabled=half is not None):
                logits = model(images.contiguous(memory_format=layout))  # [n, 10]
                return F.cross_entropy(logits, labels)

        self._loss = self.compiled(loss)

    def __call__(self, images: Tensor, labels: Tensor, meanwhile: Callable[[], None] = nothing) -> Tensor:
        """The loss [] of one batch: images [n, channels, h, w], normalized or in bytes, labels int64 [n]."""
        return self.iterate(lambda: self._loss(images, labels), len(images), meanwhile)


class Done(NamedTuple):
    """The result of an iteration on the device: the ids of its pictures, whether each was intact, and the loss []."""

    ids: Tensor
    sound: Tensor
    loss: Tensor


class TrainingLoop:
    """One training from its beginning; `iterate()` trains on the next batch."""

    def __init__(self, context: Context, rung: Rung, pictures: Pictures, mirrored: bool = True) -> None:
        torch.backends.cudnn.benchmark = rung.recipe.autotuned
        self.rung, self.device, self._items = rung, context.device, context.items
        self.trainer = PictureTrainer(context, rung.recipe, rung.batch)
        order = data.sample_order(context.seed, len(pictures), context.items, mirrored)
        self._expected, self._position = order.ids.to(context.device), 0
        self.source = self._source(pictures, order)
        self._latest: Batch | None = None
        self._go_on: Callable[[], Done] = self._train
        self.captured = rung.whole_graph and context.capture_graphs and context.device.type == "cuda"
        if self.captured:
            self._go_on = self.trainer.capture(self._train, self.source.state)  # cuda only

    def _source(self, pictures: Pictures, order: SampleOrder) -> Source:
        rung = self.rung
        if rung.resident:
            make = self.trainer.compiled(self.make_images_of(pictures))
            return data.take_resident(pictures, order, rung.batch, make, self.device)
        pieces, each = load(pictures, order, rung), rung.batch // rung.piece
        if rung.prefetched:
            return data.take_prefetched(pieces, each, rung.batch, self.device)
        return data.take_loaded(pieces, each, rung.non_blocking, self.device)

    def make_images_of(self, pictures: Pictures) -> Callable[..., Tensor]:
        """`image_maker`'s function for these pictures, in the form that the recipe's model takes."""
        recipe = self.rung.recipe
        dtype = recipe.half or torch.float32
        return data.image_maker(
            pictures, self.rung.side_pixels, recipe.stem_channels, dtype, recipe.layout, self.device
        )

    def _train(self) -> Done:
        batch = self._latest = self.source.take()
        return Done(batch.ids, batch.sound, self.trainer(batch.images, batch.labels, self.source.fetch_next))

    def iterate(self) -> tuple[Tensor, Tensor]:
        """Trains on the next batch; returns bool [n], True for pictures in their place and intact, and the loss []."""
        done = self._go_on()
        expected = self._expected[self._position : self._position + self.rung.batch]
        self._position = (self._position + self.rung.batch) % len(self._expected)
        return done.sound & (done.ids == expected) & done.loss.isfinite(), done.loss

    def step(self, stamps: Tensor) -> Tensor:
        """Trains on one picture per stamp, float32 [items]; negates the stamps of pictures that were not right."""
        in_place = [self.iterate()[0] for _ in range(self._items // self.rung.batch)]
        return torch.where(in_place[0] if len(in_place) == 1 else torch.cat(in_place), stamps, -stamps)

    def cached_step(self) -> None:
        """Trains on the latest batch again and again: the step without the cost of loading and copying."""
        batch = self._latest or self.source.take()
        for _ in range(self._items // self.rung.batch):
            self.trainer(batch.images, batch.labels)

    def why_not(self) -> str | None:
        """The reason why this is not the training that the rung describes, or None."""
        if self.rung.whole_graph and not self.captured:
            return "no CUDA graph was captured"
        return self.trainer.why_not(2 if self.rung.resident else 1)  # the iteration, and the making of its images

    def join(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # cuda only

    def close(self) -> None:
        self.join()
        self.source.close()


def train(context: Context, rung: Rung) -> Side:
    """The side that trains by `rung` on the pictures of `--perf-set cifar10=DIR`, or on seeded ones."""
    return training_side(context, rung, data.training_pictures(context))


def training_side(context: Context, rung: Rung, pictures: Pictures) -> Side:
    """The side of a comparison that trains by `rung`; its model changes with every step, so that none is declared.

    A batch is never larger than a step.
    """
    rung = replace(rung, batch=min(rung.batch, context.items))
    loop = TrainingLoop(context, rung, pictures)
    return Side(
        loop.step,
        finish=loop.join,
        engaged=loop.why_not,
        close=loop.close,
        stock_steps=rung.stock_steps(context.items),
        cached_step=None if rung.resident else loop.cached_step,
        waits_ms=loop.source.waits_ms,
    )

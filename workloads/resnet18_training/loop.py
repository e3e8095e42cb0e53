"""A training loop that records for every iteration which pictures it consumed, in which order, and whether intact.

A step gets one random number per item, a receipt. It returns the receipt unchanged for an item that was consumed in its
place and intact, and negated for any other: an output that is wrong, stale or invented does not match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.parts.prefetcher import Prefetcher
from workloads.parts.random_inputs import host_generator
from workloads.parts.stages import stage
from workloads.parts.whole_step import captured
from workloads.resnet18_training.cifar import Pictures, training_pictures
from workloads.resnet18_training.data import Batch, Pieces, PreparedPictures, checked
from workloads.resnet18_training.resident_pictures import ResidentPictures, image_maker
from workloads.resnet18_training.rungs import Rung
from workloads.resnet18_training.sample_order import SampleOrder, sample_order
from workloads.resnet18_training.step import Trainer


class Done(NamedTuple):
    """The result of an iteration on the device: the ids of its pictures, whether each was intact, and the loss []."""

    ids: Tensor
    sound: Tensor
    loss: Tensor


class Source(Protocol):
    """A source of batches."""

    def take(self) -> Batch: ...

    def fetch_next(self) -> None:
        """Called once the device has the work on the latest batch."""

    def state(self) -> list[Tensor]:
        """Every tensor on the device that `take()` changes."""

    def problem(self) -> str | None: ...

    def close(self) -> None: ...


class LoadedBatches:
    """Batches from a DataLoader, copied on request, or on a stream of their own while the one before is in use."""

    def __init__(self, pictures: PreparedPictures, rung: Rung, device: torch.device) -> None:
        self._pieces = Pieces(pictures, rung.piece, rung.workers, rung.pinned)
        self._each, self._device, self._non_blocking = rung.batch // rung.piece, device, rung.non_blocking
        self._items = rung.batch
        self._prefetcher = Prefetcher(self._pieces, device, self._each) if rung.prefetched else None

    def take(self) -> Batch:
        if self._prefetcher is not None:
            images, told = self._prefetcher.take(ahead=False)
            return checked(images, told)
        parts = [self._copied(next(self._pieces)) for _ in range(self._each)]
        if len(parts) == 1:
            return checked(*parts[0])
        images, told = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return checked(images, told)

    def fetch_next(self) -> None:
        if self._prefetcher is not None:
            with stage("prefetch", self._items):  # the next batch's pieces, and its copies
                self._prefetcher.copy_next()

    def _copied(self, piece: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, told = piece
        with stage("copy", len(images)):
            return (
                images.to(self._device, non_blocking=self._non_blocking),
                told.to(self._device, non_blocking=self._non_blocking),
            )

    def state(self) -> list[Tensor]:
        return []

    def problem(self) -> str | None:
        return self._pieces.problem()

    def close(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._pieces.close()


class TrainingLoop:
    """One training from its beginning; `iterate()` trains on the next batch."""

    def __init__(self, context: Context, rung: Rung, pictures: Pictures, mirrored: bool = True) -> None:
        torch.backends.cudnn.benchmark = rung.autotuned
        self.rung, self.device, self._items = rung, context.device, context.items
        self.trainer = Trainer(context, rung.recipe, rung.batch)
        order = sample_order(context.seed, len(pictures), context.items, mirrored)
        self._expected, self._position = order.ids.to(context.device), 0
        self.source = self._source(pictures, order)
        self._latest: Batch | None = None
        self._go_on: Callable[[], Done] = self._train
        self.captured = rung.whole_graph and context.capture_graphs and context.device.type == "cuda"
        if self.captured:
            self._go_on = self._capture()  # cuda only

    def _source(self, pictures: Pictures, order: SampleOrder) -> Source:
        rung = self.rung
        if not rung.resident:
            return LoadedBatches(PreparedPictures(pictures, order, rung.side_pixels, rung.uint8), rung, self.device)
        make = image_maker(pictures, rung.side_pixels, rung.recipe, self.device)
        return ResidentPictures(
            pictures, order.to(self.device), rung.batch, self.trainer.compiled(make) if rung.recipe.compiled else make
        )

    def _train(self) -> Done:
        batch = self._latest = self.source.take()
        return Done(batch.ids, batch.sound, self.trainer(batch.images, batch.labels, self.source.fetch_next))

    def _capture(self) -> Callable[[], Done]:  # cuda only
        state = [*self.trainer.state(), *self.source.state()]
        return captured(self._train, state, self.trainer.scaler, self.device)

    def iterate(self) -> tuple[Tensor, Tensor]:
        """Trains on the next batch; returns bool [n], True for pictures in their place and intact, and the loss []."""
        done = self._go_on()
        expected = self._expected[self._position : self._position + self.rung.batch]
        self._position = (self._position + self.rung.batch) % len(self._expected)
        return done.sound & (done.ids == expected) & done.loss.isfinite(), done.loss

    def step(self, receipts: Tensor) -> Tensor:
        """Trains on one picture per receipt, float32 [items]; negates the receipts of pictures that were not right."""
        in_place = [self.iterate()[0] for _ in range(self._items // self.rung.batch)]
        return torch.where(in_place[0] if len(in_place) == 1 else torch.cat(in_place), receipts, -receipts)

    def cached_step(self) -> None:
        """Trains on the latest batch again and again: the step without the cost of loading and copying."""
        batch = self._latest or self.source.take()
        for _ in range(self._items // self.rung.batch):
            self.trainer(batch.images, batch.labels)

    def problem(self) -> str | None:
        """The reason why this is not the training that the rung describes, or None."""
        if self.rung.whole_graph and not self.captured:
            return "no CUDA graph was captured"
        graphs = 2 if self.rung.resident else 1  # the iteration, and the graph that makes its images
        return self.source.problem() or self.trainer.problem(graphs)

    def join(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # cuda only

    def close(self) -> None:
        self.join()
        self.source.close()


def receipts(context: Context, index: int) -> Tensor:
    """Input set `index`: one random number per item, float32 [items], never zero; pictures arrive by the data path."""
    generator = host_generator(context, index)
    return torch.rand(context.items, generator=generator).add_(0.5).to(context.device)


def train(context: Context, rung: Rung) -> Side:
    """The side that trains by `rung` on the pictures of `--perf-set cifar10=DIR`, or on seeded ones."""
    return training_side(context, rung, training_pictures(context))


def training_side(context: Context, rung: Rung, pictures: Pictures) -> Side:
    """The side of a comparison that trains by `rung`; its model changes with every step, so that none is declared.

    A batch is never larger than a step.
    """
    rung = replace(rung, batch=min(rung.batch, context.items))
    loop = TrainingLoop(context, rung, pictures)
    return Side(
        loop.step,
        finish=loop.join,
        engaged=loop.problem,
        close=loop.close,
        stock_steps=rung.stock_steps(context.items),
        cached_step=None if rung.resident else loop.cached_step,
    )

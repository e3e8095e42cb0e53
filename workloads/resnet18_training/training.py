"""Training of ResNet-18 by a rung: the iteration, and a loop that records which pictures it consumed, and how.

A step gets one random number per item, a receipt. It returns the receipt unchanged for an item that was consumed in its
place and intact, and negated for any other: an output that is wrong, stale or invented does not match.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import Context, Side
from workloads.parts.compiled import NCHW, compile_counted, find_lost_layout, miscount
from workloads.parts.graph_capture import capture_iteration
from workloads.parts.prefetcher import Prefetcher
from workloads.parts.random_inputs import host_generator
from workloads.parts.resnet_layers import PaddedStem, ParityPool
from workloads.parts.stages import stage
from workloads.resnet18_training.pictures import (
    AHEAD,
    CLASSES,
    Batch,
    Pictures,
    PreparedPictures,
    ResidentPictures,
    SampleOrder,
    checked,
    image_maker,
    load_pieces,
    normalization,
    sample_order,
    training_pictures,
)

MOMENTUM = 0.9
LEARNING_RATE, LEARNING_RATE_BATCH = 0.01, 32  # grows with the root of the batch, as the noise of its gradient falls
# Low enough that the first gradients do not overflow FP16: a skipped update would shift the loss curve by a step. The
# scaler doubles it while nothing overflows.
FIRST_LOSS_SCALE = 2.0**12


@dataclass(frozen=True)
class Recipe:
    """The recipe of an iteration. `half` is the precision of autocast; None is FP32 throughout."""

    half: torch.dtype | None = None
    compiled: bool = False
    layout: torch.memory_format = NCHW
    stem_channels: int = 3  # above 3: the images come with channels of zeros after their own
    fused_update: bool = False
    gathered_pool: bool = False  # the gradient of the pooling is gathered by every pixel, see ParityPool
    tuned: bool = False  # Inductor times some block sizes for each of its kernels on a GPU, and keeps the fastest


@dataclass(frozen=True)
class Rung:
    """The settings of a training: the source of its batches, and the recipe of its computation.

    The loader sends pieces of `piece` pictures on every rung, and a larger batch is joined on the device: the loader's
    stock stays one step.
    """

    workers: int = 0
    pinned: bool = False
    non_blocking: bool = False
    uint8: bool = False  # torchvision's v2 resizes bytes, bytes cross the bus, and the device normalizes them
    batch: int = 32
    prefetched: bool = False
    resident: bool = False
    whole_graph: bool = False
    autotuned: bool = False  # cuDNN times its algorithms at the first iteration and keeps the fastest
    recipe: Recipe = Recipe()
    piece: int = 32
    side_pixels: int = 224

    def stock_steps(self, items: int) -> int:
        """The largest number of steps whose data workers, and a copy stream, have ready."""
        pictures = self.workers * AHEAD * self.piece + (self.batch if self.prefetched else 0)
        return math.ceil(pictures / items)


def nothing() -> None:
    """The default of the work of the host while the device computes."""


def architecture(classes: int) -> nn.Module:
    """torchvision's ResNet-18 without weights; its import takes a second, which collecting tests should not pay."""
    from torchvision.models import resnet18

    model: nn.Module = resnet18(weights=None, num_classes=classes)
    return model


def net(context: Context, recipe: Recipe) -> nn.Module:
    """torchvision's ResNet-18 with seeded FP32 weights and ten classes, in training mode, on the context's device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        model = architecture(CLASSES)
    if recipe.stem_channels > 3:
        model.conv1 = PaddedStem(model.conv1, recipe.stem_channels)  # type: ignore[arg-type]
    if recipe.gathered_pool:
        model.maxpool = ParityPool()
    return model.to(device=context.device, memory_format=recipe.layout)  # type: ignore[call-overload,no-any-return]


class Trainer:
    """A model with its optimizer and loss scaler; calling it with a batch is one iteration.

    `graphs` counts the graphs that torch.compile made of all functions that were compiled by `compiled`.
    """

    def __init__(self, context: Context, recipe: Recipe, batch: int) -> None:
        self.recipe, self.device = recipe, context.device
        self.model = net(context, recipe)
        self.graphs: list[bool] = []
        rate = LEARNING_RATE * (batch / LEARNING_RATE_BATCH) ** 0.5
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=rate, momentum=MOMENTUM, fused=recipe.fused_update or None
        )
        if recipe.fused_update:
            self._begin_momentum()
        # Only FP16 needs it: bfloat16 has the exponents of FP32.
        self.scaler = torch.amp.GradScaler(  # type: ignore[attr-defined]
            context.device.type, init_scale=FIRST_LOSS_SCALE, enabled=recipe.half is torch.float16
        )
        self._loss = self.compiled(self._forward()) if recipe.compiled else self._forward()

    def __call__(self, images: Tensor, labels: Tensor, meanwhile: Callable[[], None] = nothing) -> Tensor:
        """The loss [] of one batch: images [n, channels, h, w], normalized or in bytes, labels int64 [n].

        `meanwhile` is called while the device computes the gradients, before the loss scaler waits for them.
        """
        self.optimizer.zero_grad(set_to_none=True)
        with stage("forward", len(images)):
            loss: Tensor = self._loss(images, labels)
        with stage("backward", len(images)):
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        meanwhile()
        self.scaler.step(self.optimizer)  # skips the update where a gradient is not finite
        self.scaler.update()
        return loss.detach()

    def _forward(self) -> Callable[[Tensor, Tensor], Tensor]:
        model, kind, half, layout = self.model, self.device.type, self.recipe.half, self.recipe.layout
        scale, shift = normalization(self.device)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            if images.dtype is torch.uint8:
                images = images * scale + shift
            with torch.autocast(kind, dtype=half, enabled=half is not None):
                logits = model(images.contiguous(memory_format=layout))  # [n, 10]
                return F.cross_entropy(logits, labels)

        return loss

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles `function` by Inductor, for one shape; `graphs` counts its graphs at the first call."""
        return compile_counted(function, self.graphs, {"max_autotune_pointwise": self.recipe.tuned})

    def _begin_momentum(self) -> None:
        """Sets the momentum to zero, which the first update leaves equal to its gradient, as it does without buffers.

        The fused update allocates them itself at its first step, unwritten where that step is skipped for an overflow.
        """
        for weight in self.model.parameters():
            self.optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)

    def state(self) -> list[Tensor]:
        """Every tensor that training changes but the loss scale's: parameters, statistics, momentum."""
        momentum = [state["momentum_buffer"] for state in self.optimizer.state.values()]
        return [*self.model.parameters(), *self.model.buffers(), *momentum]

    def problem(self, graphs: int) -> str | None:
        """The reason why an iteration departs from its recipe, or None; `graphs` is the number to be compiled."""
        if self.recipe.compiled and (reason := miscount(self.graphs, graphs)):
            return reason
        return find_lost_layout(self.model, self.recipe.layout)


class Done(NamedTuple):
    """The result of an iteration on the device: the ids of its pictures, whether each was intact, and the loss []."""

    ids: Tensor
    sound: Tensor
    loss: Tensor


class LoadedBatches:
    """Batches from a DataLoader, copied on request, or on a stream of their own while the one before is in use."""

    def __init__(self, pictures: PreparedPictures, rung: Rung, device: torch.device) -> None:
        self._pieces = load_pieces(pictures, rung.piece, rung.workers, rung.pinned)
        self._each, self._device, self._non_blocking = rung.batch // rung.piece, device, rung.non_blocking
        self._items = rung.batch
        self._prefetcher = Prefetcher(self._pieces, device, self._each) if rung.prefetched else None

    def take(self) -> Batch:
        if self._prefetcher is not None:
            images, told = self._prefetcher.take(ahead=False)
            return checked(images, told)
        parts = [self._copied() for _ in range(self._each)]
        if len(parts) == 1:
            return checked(*parts[0])
        images, told = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return checked(images, told)

    def fetch_next(self) -> None:
        if self._prefetcher is not None:
            with stage("prefetch", self._items):  # the next batch's pieces, and its copies
                self._prefetcher.copy_next()

    def _copied(self) -> tuple[Tensor, Tensor]:
        images, told = next(self._pieces)
        with stage("copy", len(images)):
            return (
                images.to(self._device, non_blocking=self._non_blocking),
                told.to(self._device, non_blocking=self._non_blocking),
            )

    def state(self) -> list[Tensor]:
        return []

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
        self.source: LoadedBatches | ResidentPictures = self._source(pictures, order)
        self._latest: Batch | None = None
        self._go_on: Callable[[], Done] = self._train
        self.captured = rung.whole_graph and context.capture_graphs and context.device.type == "cuda"
        if self.captured:
            state = [*self.trainer.state(), *self.source.state()]  # cuda only
            self._go_on = capture_iteration(self._train, state, self.trainer.scaler, self.device)  # cuda only

    def _source(self, pictures: Pictures, order: SampleOrder) -> LoadedBatches | ResidentPictures:
        rung = self.rung
        if not rung.resident:
            return LoadedBatches(PreparedPictures(pictures, order, rung.side_pixels, rung.uint8), rung, self.device)
        make = self.make_images_of(pictures)
        make = self.trainer.compiled(make) if rung.recipe.compiled else make
        return ResidentPictures(pictures, order.to(self.device), rung.batch, make)

    def make_images_of(self, pictures: Pictures) -> Callable[..., Tensor]:
        """`image_maker`'s function for these pictures, in the form that the recipe's model takes."""
        recipe = self.rung.recipe
        dtype = recipe.half or torch.float32
        return image_maker(pictures, self.rung.side_pixels, recipe.stem_channels, dtype, recipe.layout, self.device)

    def _train(self) -> Done:
        batch = self._latest = self.source.take()
        return Done(batch.ids, batch.sound, self.trainer(batch.images, batch.labels, self.source.fetch_next))

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
        return self.trainer.problem(graphs)

    def join(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # cuda only

    def close(self) -> None:
        self.join()
        self.source.close()


def receipts(context: Context, index: int) -> Tensor:
    """Input set `index`: one random number per item, float32 [items], never zero; pictures arrive by the data path."""
    return torch.rand(context.items, generator=host_generator(context, index)).add_(0.5).to(context.device)


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

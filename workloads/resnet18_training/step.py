"""One iteration of training ResNet-18: forward, backward and the update, in the precision and layout of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import Context
from workloads.parts.compiled import compile_counted, miscount
from workloads.parts.padded_stem import PaddedStem
from workloads.parts.parity_pool import ParityPool
from workloads.parts.stages import stage
from workloads.resnet18_training.cifar import CLASSES
from workloads.resnet18_training.data import normalization

MOMENTUM = 0.9
LEARNING_RATE, LEARNING_RATE_BATCH = 0.01, 32  # grows with the root of the batch, as the noise of its gradient falls
# Low enough that the first gradients do not overflow FP16: a skipped update would shift the loss curve by a step. The
# scaler doubles it while nothing overflows.
FIRST_LOSS_SCALE = 2.0**12

NCHW, NHWC = torch.contiguous_format, torch.channels_last


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
        for name, weight in self.model.named_parameters():
            if weight.dim() == 4 and not weight.is_contiguous(memory_format=self.recipe.layout):
                return f"{name} is not in {self.recipe.layout}"
        return None

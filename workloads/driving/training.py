"""One training iteration of the driving model by a recipe: forward, loss, backward and the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.driving.delivery import Batch
from workloads.driving.model import driving_model
from workloads.driving.scenes import Rig
from workloads.parts.compiled import compile_counted, miscount
from workloads.parts.stages import stage

LEARNING_RATE, MOMENTUM = 0.02, 0.9
# Low enough that the first gradients do not overflow FP16: the update would be skipped.
FIRST_LOSS_SCALE = 2.0**12


@dataclass(frozen=True)
class Recipe:
    """The recipe of an iteration. FP16 brings gradient scaling with it.

    `fused` is the optimizer as one kernel, which also reads the gradients' scale on the device: without it, FP16 waits
    for the device in every iteration to learn whether a gradient overflowed.
    """

    precision: torch.dtype = torch.float32
    channels_last: bool = False
    stem_channels: int = 3  # above 3: pictures get channels of zeros after their own
    fused: bool = False
    autotuned: bool = False  # cuDNN times its algorithms and takes the fastest
    compiled: bool = False


class Trainer:
    """A model with its optimizer; it owns both, and nothing else of the process changes."""

    def __init__(self, rig: Rig, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.device, self.recipe = device, recipe
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        self.model = driving_model(rig, seed)
        if recipe.stem_channels > 3:
            self.model.pad_stem(recipe.stem_channels)
        self.model.to(device=device, memory_format=layout)  # type: ignore[call-overload]
        self.model.dtype, self.model.layout = recipe.precision, layout
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), LEARNING_RATE, MOMENTUM, fused=True if recipe.fused else None
        )
        if recipe.fused:
            self._begin_momentum()
        half = recipe.precision == torch.float16  # bfloat16 has the exponents of FP32
        self.scaler = torch.amp.GradScaler(device.type, FIRST_LOSS_SCALE, enabled=half)  # type: ignore[attr-defined]
        self.graphs: list[bool] = []
        self._forward: Callable[[Tensor, Tensor], Tensor] = self._compiled() if recipe.compiled else self.model

    def train(self, batch: Batch) -> Tensor:
        """One iteration on a batch that is on the device; returns its loss, float32 [], without waiting for it."""
        self.optimizer.zero_grad(set_to_none=True)
        with stage("forward", len(batch.images)):
            with self._autocast():
                waypoints = self._forward(batch.images, batch.commands)
            loss = F.smooth_l1_loss(waypoints, batch.waypoints)
        with stage("backward", len(batch.images)):
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Every tensor that training changes: weights, running averages, momentum; by name."""
        names = [name for name, _ in self.model.named_parameters()]
        momentum = self.optimizer.state_dict()["state"]
        buffers = {f"momentum of {names[number]}": each["momentum_buffer"] for number, each in momentum.items()}
        return {**self.model.state_dict(), **buffers}

    def why_not(self) -> str | None:
        """The reason why the recipe was not followed, or None."""
        if self.recipe.compiled and (reason := miscount(self.graphs)):
            return reason
        layout = torch.channels_last
        if self.recipe.channels_last:
            for name, weight in self.model.named_parameters():
                if weight.dim() == 4 and not weight.is_contiguous(memory_format=layout):
                    return f"{name} is not in {layout}"
        return None

    def _begin_momentum(self) -> None:
        """Sets the momentum to zeros, from which the first update yields its gradient, as it does without buffers.

        The fused update would allocate its buffers in the first step, and leave them unwritten where that step
        overflows.
        """
        for weight in self.model.parameters():
            self.optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)

    def _autocast(self) -> AbstractContextManager[object]:
        if self.recipe.precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.recipe.precision)

    def _compiled(self) -> Callable[[Tensor, Tensor], Tensor]:
        model = self.model

        def forward(images: Tensor, commands: Tensor) -> Tensor:
            waypoints: Tensor = model(images, commands)
            return waypoints

        return compile_counted(forward, self.graphs)

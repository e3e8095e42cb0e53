"""One training iteration by a recipe: precision, layout, update and compilation of a model that is trained by SGD."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from workloads.parts.compiled import NCHW, compile_counted, find_lost_layout, miscount
from workloads.parts.graph_capture import capture_iteration
from workloads.parts.stages import stage

MOMENTUM = 0.9
# Low enough that the first gradients do not overflow FP16: a skipped update would shift the loss curve by a step. The
# scaler doubles it while nothing overflows.
FIRST_LOSS_SCALE = 2.0**12
_Done = TypeVar("_Done")


@dataclass(frozen=True)
class Recipe:
    """The recipe of an iteration. `half` is the precision of autocast, where FP16 brings loss scaling; None is FP32.

    `fused` is the update as one kernel, which also reads the scale on the device: without it, FP16 waits for the device
    in every iteration to learn whether a gradient overflowed.
    """

    half: torch.dtype | None = None
    layout: torch.memory_format = NCHW
    stem_channels: int = 3  # above 3: pictures have channels of zeros after their own
    fused: bool = False
    autotuned: bool = False  # cuDNN times its algorithms at the first iteration and keeps the fastest
    compiled: bool = False
    tuned: bool = False  # Inductor times some block sizes for each of its kernels on a GPU, and keeps the fastest
    gathered_pool: bool = False  # the gradient of the pooling is gathered by every pixel, see ParityPool


def nothing() -> None:
    """The default of the work of the host while the device computes."""


class Trainer:
    """A model with its optimizer and loss scaler, both on `device`; nothing else of the process changes.

    `graphs` gets one entry for each graph that torch.compile makes of a function of `compiled`.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, rate: float, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.model = model.to(device=device, memory_format=recipe.layout)  # type: ignore[call-overload]
        self.graphs: list[bool] = []
        self.optimizer = torch.optim.SGD(self.model.parameters(), rate, MOMENTUM, fused=recipe.fused or None)
        if recipe.fused:
            # The fused update would allocate its buffers at its first step, unwritten where an overflow skips that
            # step. From zeros the first update yields its gradient, as it does without buffers.
            for weight in self.model.parameters():
                self.optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        half = recipe.half is torch.float16  # bfloat16 has the exponents of FP32
        self.scaler = torch.amp.GradScaler(device.type, FIRST_LOSS_SCALE, enabled=half)  # type: ignore[attr-defined]

    def iterate(self, loss_of: Callable[[], Tensor], pictures: int, meanwhile: Callable[[], None] = nothing) -> Tensor:
        """One iteration; returns its loss, float32 [], without waiting for it.

        `meanwhile` is called while the device computes the gradients, before the loss scaler waits for them.
        """
        self.optimizer.zero_grad(set_to_none=True)
        with stage("forward", pictures):
            loss = loss_of()
        with stage("backward", pictures):
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        meanwhile()
        self.scaler.step(self.optimizer)  # skips the update where a gradient is not finite
        self.scaler.update()
        return loss.detach()

    def autocast(self) -> torch.autocast:
        """The precision of the recipe, as a context."""
        return torch.autocast(self.device.type, dtype=self.recipe.half, enabled=self.recipe.half is not None)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function compiled by Inductor for one shape, where the recipe compiles; else the function."""
        if not self.recipe.compiled:
            return function
        return compile_counted(function, self.graphs, {"max_autotune_pointwise": self.recipe.tuned})

    def capture(self, work: Callable[[], _Done], more_state: Sequence[Tensor]) -> Callable[[], _Done]:  # cuda only
        """A CUDA graph of an iteration that `work` does; it starts from the state before the call.

        `more_state` has the tensors that `work` changes beside the trainer's.
        """
        return capture_iteration(work, [*self.state().values(), *more_state], self.scaler, self.device)

    def state(self) -> dict[str, Tensor]:
        """Every tensor that training changes but the loss scale's: weights, running averages, momentum; by name."""
        names = [name for name, _ in self.model.named_parameters()]
        momentum = self.optimizer.state_dict()["state"]
        buffers = {f"momentum of {names[number]}": each["momentum_buffer"] for number, each in momentum.items()}
        return {**self.model.state_dict(), **buffers}

    def why_not(self, graphs: int = 1) -> str | None:
        """The reason why an iteration departs from its recipe, or None; `graphs` is the number to be compiled."""
        if self.recipe.compiled and (reason := miscount(self.graphs, graphs)):
            return reason
        return find_lost_layout(self.model, self.recipe.layout)

"""ResNet-50 inference on photographs of 224 x 224: FP32 eager against what precision, layout, fusion and graphs give.

Every side gets the same float32 NCHW batch and returns float32 logits [items, 1000]; converting the batch to what a side
computes in is part of its step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpugate.workload import (
    TOLERANCE_BY_DTYPE,
    Context,
    Contract,
    DeviceKind,
    Limit,
    Needs,
    Optimization,
    Side,
    Size,
    Tolerance,
    Workload,
)
from workloads.cudnn_fusion import STEM_CHANNELS, fuse, to_channels_last_half
from workloads.photographs import photograph_batch

# Of one photograph; a test counts them again.
MULTIPLY_ADDS = 4_089_184_256  # convolutions and the fully connected layer
VALUES_READ, VALUES_WRITTEN = 10_664_448, 11_114_984  # by those layers, weights apart
WEIGHTS = 25_557_032

CALIBRATION_PHOTOGRAPHS = 16
CALIBRATION_BATCH = 2**31  # an index that no measurement reaches
WARM_UP_STEPS = 3

Step = Callable[[Tensor], Tensor]
Forward = Callable[[Tensor], Tensor]


def size(items: int) -> Size:
    """FLOPs: 2 per multiply-add. Bytes: FP32 weights once, and each layer's input read and output written once."""
    values = WEIGHTS + items * (VALUES_READ + VALUES_WRITTEN)
    return Size(items=items, flops=2.0 * items * MULTIPLY_ADDS, bytes=4.0 * values)


# --- weights ----------------------------------------------------------------------------------------------------------


def resnet50(context: Context) -> nn.Module:
    """A fresh eval model on the context's device with the seeded weights, or those of the user's checkpoint.

    Raises ValueError, in one sentence that names the file, for a checkpoint that is not a ResNet-50's state_dict.
    """
    from torchvision.models import resnet50 as architecture

    with torch.device("meta"):
        model = architecture()
    state = {name: value.to(context.device, copy=True) for name, value in _weights(context).items()}
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def _weights(context: Context) -> Mapping[str, Tensor]:
    if context.checkpoint_path is not None:
        return checkpoint(context.checkpoint_path)
    return seeded_weights(context.seed, context.input_path)


@functools.lru_cache(maxsize=1)
def checkpoint(path: Path) -> Mapping[str, Tensor]:
    """The state_dict in `path`, on the CPU; raises ValueError, in one sentence that names the file."""
    from torchvision.models import resnet50 as architecture

    wanted = f"--perf-checkpoint {path} is not the state_dict of a torchvision resnet50"
    advice = "save one with torch.save(model.state_dict(), file)"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        architecture().load_state_dict(state)
    except Exception as error:  # torch.load lets through whatever zip, pickle and the file system raise
        reason = next(iter(str(error).strip().splitlines()), "").rstrip(":.")
        raise ValueError(f"{wanted} ({type(error).__name__}: {reason}): {advice}") from error
    return state


@functools.lru_cache(maxsize=2)
def seeded_weights(seed: int, input_path: Path | None) -> Mapping[str, Tensor]:
    """He initialization, random BatchNorm weights, and running statistics from photographs, on the CPU.

    Untrained running statistics (mean 0, variance 1) would let activations grow from block to block. The last
    BatchNorm of a block is small, as training makes it: at full size each block amplifies rounding errors, and FP16 logits
    differ by 2 % where a trained network's differ by 0.1 %.
    """
    from torchvision.models import resnet50 as architecture

    context = Context(torch.device("cpu"), CALIBRATION_PHOTOGRAPHS, seed, Path(), input_path)
    photographs = photograph_batch(context, CALIBRATION_BATCH)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        model = architecture().eval()
        norms = {name: module for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
        for name, norm in norms.items():
            ends_block = name.endswith("bn3")
            norm.weight.uniform_(*((0.1, 0.3) if ends_block else (0.5, 1.5)))
            norm.bias.normal_(0.0 if ends_block else 0.3, 0.2)
            norm.register_forward_pre_hook(_set_statistics)
        model(photographs)
    return {name: value.clone() for name, value in model.state_dict().items()}


def _set_statistics(norm: nn.Module, inputs: tuple[Tensor]) -> None:
    """Half of the mean stays in, as in a network whose statistics come from other pictures; the scale becomes 1."""
    (x,) = inputs
    mean = 0.5 * x.mean((0, 2, 3))
    norm.running_mean.copy_(mean)  # type: ignore[operator,union-attr]
    norm.running_var.copy_((x - mean.view(1, -1, 1, 1)).square().mean((0, 2, 3)))  # type: ignore[operator,union-attr]

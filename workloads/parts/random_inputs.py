"""Random values on the device of a side, which depend on the seed of the run and on the number of the input set."""

from __future__ import annotations

import torch
from torch import Tensor

from gpugate.workload import Context


def generator_of(context: Context, index: int) -> torch.Generator:
    """The generator of input set `index`, on the context's device."""
    return torch.Generator(context.device).manual_seed(1_000_003 * context.seed + index)


def draw(context: Context, index: int, *shape: int) -> Tensor:
    """Normal values of input set `index`: float32 of the given shape, on the context's device."""
    return torch.randn(shape, device=context.device, generator=generator_of(context, index))

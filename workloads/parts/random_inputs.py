"""Random values of a side's inputs, which depend on the seed of the run and on the number of the input set."""

from __future__ import annotations

import torch
from torch import Tensor

from gpugate.workload import Context


def host_generator(context: Context, index: int) -> torch.Generator:
    """The generator of input set `index`, on the host."""
    return torch.Generator().manual_seed(_seed(context, index))


def generator_of(context: Context, index: int) -> torch.Generator:
    """The generator of input set `index`, on the context's device."""
    return torch.Generator(context.device).manual_seed(_seed(context, index))


def draw(context: Context, index: int, *shape: int) -> Tensor:
    """Normal values of input set `index`: float32 of the given shape, on the context's device."""
    return torch.randn(shape, device=context.device, generator=generator_of(context, index))


def stamps(context: Context, index: int) -> Tensor:
    """Input set `index`: float32 [items] between 1 and 2 on the device, one for each item of the step.

    The items themselves are no input: loaders and decoders read ahead. A step multiplies its record by the stamps, so
    that it cannot return the record of an earlier step.
    """
    return (1 + torch.rand(context.items, generator=host_generator(context, index))).to(context.device)


def _seed(context: Context, index: int) -> int:
    return 1_000_003 * context.seed + index

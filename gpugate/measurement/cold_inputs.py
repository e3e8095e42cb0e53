"""Inputs for a case: enough different sets that no step finds its input in L2, unless the workload says hot."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from gpugate.errors import SideError
from gpugate.workload import Context, Workload

FALLBACK_CACHE_BYTES = 32 * 2**20  # a CPU's last-level cache, where the machine does not tell
MAX_SETS = 1024
HOT_SETS = 2  # even a hot workload alternates, so that a step that returns a stale output is seen
FIRST_FRESH_INDEX = 1_000_000


def tensors(inputs: Any) -> list[torch.Tensor]:
    """The tensors of one input set, however nested."""
    return [leaf for leaf in _pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


def byte_size(inputs: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(inputs))


def cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":  # cuda only
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return FALLBACK_CACHE_BYTES


def sets_needed(input_bytes: int, cache_bytes: int, cold: bool) -> int:
    """Sets whose total exceeds the cache by one set, so that the oldest is evicted before it is used again."""
    if not cold or input_bytes == 0:
        return HOT_SETS
    return max(HOT_SETS, min(MAX_SETS, math.ceil(cache_bytes / input_bytes) + 1))


@dataclass(frozen=True)
class Inputs:
    """The sets that are timed, and sets drawn anew in every session for the equivalence check."""

    timed: tuple[Any, ...]
    fresh: tuple[Any, ...]
    fresh_index: int
    checksum: int


def checksum(inputs: Any) -> int:
    """A sum over the bits of every tensor: equal unless something wrote to them."""
    total = 0
    for tensor in tensors(inputs):
        total += int(tensor.detach().reshape(-1).contiguous().view(torch.uint8).sum(dtype=torch.int64).item())
        total += 0 if tensor.is_inference() else tensor._version
    return total


def check_untouched(inputs: Inputs, side: str) -> None:
    """Raises SideError when the bits of any input set have changed."""
    if checksum((inputs.timed, inputs.fresh)) != inputs.checksum:
        problem = ValueError("it wrote to its inputs: copy them first, the other side reads the same tensors")
        raise SideError(side, "running its steps", problem)


def make_inputs(workload: Workload, context: Context, fresh_count: int, draw: random.Random) -> Inputs:
    """Timed sets 0, 1, ...; fresh sets at a random index that is recorded."""
    first = workload.inputs(context, 0)
    count = sets_needed(byte_size(first), cache_bytes(context.device), workload.cold)
    timed = (first, *(workload.inputs(context, index) for index in range(1, count)))
    fresh_index = FIRST_FRESH_INDEX + draw.randrange(2**30)
    fresh = tuple(workload.inputs(context, fresh_index + offset) for offset in range(fresh_count))
    return Inputs(timed, fresh, fresh_index, checksum((timed, fresh)))

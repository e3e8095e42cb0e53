"""Inputs of a case: enough different sets that no step finds its input in L2, unless `Workload.cold` is False."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from gpugate.errors import SideError
from gpugate.workload import Context, Workload

FALLBACK_CACHE_BYTES = 32 * 2**20  # a CPU's last-level cache
LAST_LEVEL_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")  # such as 32768K
MAX_SETS = 1024
HOT_SETS = 2  # even a hot workload alternates: with one set, a stale output would be the right one
FIRST_FRESH_INDEX = 1_000_000
CHECKSUM_CHUNK = 2**22  # words
# The most bytes that change places between two pairs: 8 sets of 256 kB took 0.2 ms on one core, where a pair takes
# 20 ms.
EXCHANGED_BYTES = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}
MOST_EXCHANGED = 8


def tensors(inputs: Any) -> list[torch.Tensor]:
    """The tensors of one input set, however nested."""
    return [leaf for leaf in _pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


def byte_size(inputs: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(inputs))


def cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":  # cuda only
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return FALLBACK_CACHE_BYTES


def most_cached_bytes(device: torch.device) -> int:
    """Bytes that may stay in a cache from step to step: a GPU's L2, or a CPU's largest cache as Linux reports it."""
    if device.type == "cuda":  # cuda only
        return cache_bytes(device)
    try:
        size = LAST_LEVEL_CACHE.read_text(encoding="ascii").strip()
        return max(FALLBACK_CACHE_BYTES, int(size.removesuffix("K")) * 1024)
    except (OSError, ValueError):
        return FALLBACK_CACHE_BYTES


def count_sets(input_bytes: int, cache_bytes: int, cold: bool) -> int:
    """Counts the sets whose total exceeds the cache by one set, so that each is evicted before it is used again."""
    if not cold or input_bytes == 0:
        return HOT_SETS
    return max(HOT_SETS, min(MAX_SETS, math.ceil(cache_bytes / input_bytes) + 1))


@dataclass(frozen=True)
class Inputs:
    """The sets that are timed, and the sets that every session draws anew for the equivalence check.

    `contents[i]` is the number of the content that timed set i has now; `contents` is empty where contents cannot
    change places between the sets, see `exchange`.
    """

    timed: tuple[Any, ...]
    fresh: tuple[Any, ...]
    fresh_index: int
    checksum: int
    contents: list[int] = field(default_factory=list)

    def content_of(self, set_number: int) -> int:
        """Looks up the number of the content that a timed set has now."""
        return self.contents[set_number] if self.contents else set_number


def checksum(inputs: Any) -> int:
    """Sums the bits by position and the versions of all tensors: a write to a tensor changes the sum.

    An exchange of contents between tensors changes no term of the sum.
    """
    total = 0
    for tensor in tensors(inputs):
        total += _bits(tensor)
        total += 0 if tensor.is_inference() else tensor._version
    return total


def _bits(tensor: torch.Tensor) -> int:
    """Sums a tensor's 64-bit words, each times another odd number, modulo 2^64: a permutation changes the sum."""
    values = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
    whole = values.numel() // 8 * 8
    words, rest = values[:whole], values[whole:]
    if words.data_ptr() % 8:
        words = words.clone()
    factors = torch.arange(min(CHECKSUM_CHUNK, max(8, whole // 8)), device=tensor.device).mul_(2).add_(1)
    total = int(rest.to(torch.int64).mul(factors[: rest.numel()]).sum())
    for start in range(0, whole // 8, CHECKSUM_CHUNK):
        chunk = words.view(torch.int64)[start : start + CHECKSUM_CHUNK]
        total += (2 * start + 1) * int(chunk.mul(factors[: chunk.numel()]).sum())
    return total % 2**64


def check_untouched(inputs: Inputs, side: str) -> None:
    """Raises SideError when the bits of any input set have changed."""
    if checksum((inputs.timed, inputs.fresh)) != inputs.checksum:
        problem = ValueError("it wrote to its inputs: copy them first, the other side reads the same tensors")
        raise SideError(side, "running its steps", problem)


def make_inputs(workload: Workload, context: Context, fresh_count: int, draw: random.Random) -> Inputs:
    """Makes timed sets 0, 1, ..., and fresh sets from a random, recorded index on. Raises TypeError for a None set."""
    first = _input_set(workload, context, 0)
    count = count_sets(byte_size(first), cache_bytes(context.device), workload.cold)
    timed = (first, *(_input_set(workload, context, index) for index in range(1, count)))
    fresh_index = FIRST_FRESH_INDEX + draw.randrange(2**30)
    fresh = tuple(_input_set(workload, context, fresh_index + offset) for offset in range(fresh_count))
    contents = list(range(count)) if _exchangeable(timed) else []
    return Inputs(timed, fresh, fresh_index, checksum((timed, fresh)), contents)


def _input_set(workload: Workload, context: Context, index: int) -> Any:
    inputs = workload.inputs(context, index)
    if inputs is None:
        raise TypeError(f"inputs(context, {index}) returned None: return what step() takes")
    return inputs


def new_set(workload: Workload, context: Context, inputs: Inputs, number: int) -> Any:
    """Makes an input set that no step of this measurement has read; `number` counts from 0."""
    return _input_set(workload, context, inputs.fresh_index + len(inputs.fresh) + number)


def _exchangeable(sets: Sequence[Any]) -> bool:
    """True where contents can change places: the sets have tensors of one form, each in memory of its own, and no
    other values that differ."""
    flat, structures = zip(*(_pytree.tree_flatten(one) for one in sets), strict=True)
    if any(structure != structures[0] for structure in structures):
        return False
    memory = set[int]()
    for column in zip(*flat, strict=True):
        first = column[0]
        if not isinstance(first, torch.Tensor):
            if any(not (one is first or (isinstance(one, int | float | str) and one == first)) for one in column):
                return False
            continue
        if any(_form(one) != _form(first) or not _owns_its_memory(one) for one in column):
            return False
        places = {one.untyped_storage().data_ptr() for one in column}
        if len(places) < len(column) or places & memory:
            return False
        memory |= places
    return bool(memory)


def same_form(one: Any, other: Any) -> bool:
    """True for two input sets that differ in the values of their tensors alone."""
    (leaves, structure), (others, of_other) = _pytree.tree_flatten(one), _pytree.tree_flatten(other)
    return structure == of_other and [*map(_form, leaves)] == [*map(_form, others)]


def _form(leaf: Any) -> tuple[Any, ...]:
    if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided:
        return (type(leaf),)
    return leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.is_pinned()


def _owns_its_memory(tensor: torch.Tensor) -> bool:
    """True for a tensor that spans its whole storage: no other tensor has a part of that memory."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.numel() > 0
    return plain and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def exchange(inputs: Inputs, sets: Sequence[int], draw: random.Random) -> None:
    """Gives each of these timed sets the content of another of these sets, in place and without a new
    `Tensor._version`.

    An output that a side keeps by address, by tensor object or by version is wrong afterwards. Nothing happens where
    contents cannot change places, and for a single set. The device is idle before and after.
    """
    order = draw.sample(list(sets), len(sets))
    if not inputs.contents or len(order) < 2:
        return
    places = [tensors(inputs.timed[number]) for number in order]
    with torch.inference_mode():
        kept = [tensor.data.clone() for tensor in places[0]]
        for into, source in itertools.pairwise(places):
            for tensor, other in zip(into, source, strict=True):
                tensor.data.copy_(other.data)
        for tensor, saved in zip(places[-1], kept, strict=True):
            tensor.data.copy_(saved)
    if kept[0].is_cuda:
        torch.cuda.synchronize(kept[0].device)  # cuda only  # a side may read them on a stream of its own
    moved = [inputs.contents[number] for number in order]
    for number, content in zip(order, [*moved[1:], moved[0]], strict=True):
        inputs.contents[number] = content


def exchange_used(inputs: Inputs, next_input: int, steps: int, draw: random.Random) -> None:
    """Exchanges contents among the timed sets that the last `steps` steps of a side read.

    These sets are in the cache already, so the sets of the next block stay cold. Each call moves at most
    EXCHANGED_BYTES; where two sets are larger, correspondingly fewer calls move two sets.
    """
    if not inputs.contents:
        return
    count, size = len(inputs.timed), byte_size(inputs.timed[0])
    allowed = EXCHANGED_BYTES[tensors(inputs.timed[0])[0].device.type]
    most = max(2, allowed // size)
    if draw.random() * 2 * size > allowed:
        return
    used = [(next_input - back) % count for back in range(1, min(count, max(2, steps)) + 1)]
    exchange(inputs, draw.sample(used, min(len(used), most, MOST_EXCHANGED)), draw)

"""Inputs of a case: enough different sets that no step finds its input in L2, unless `Workload.cold` is False."""

from __future__ import annotations

import itertools
import math
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from gpugate.errors import SideError
from gpugate.workload import Context, Workload
from gpugate.workload.parts import VALUES, byte_size, bytes_of, list_parts, list_tensors, opaque_part

FALLBACK_CACHE_BYTES = 32 * 2**20  # a CPU's last-level cache
LAST_LEVEL_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")  # such as 32768K
MAX_SETS = 1024
WRITTEN_BYTES = 2**28  # of the sets of a workload that writes to them: a block reads each set once
HOT_SETS = 2  # even a hot workload alternates: with one set, a stale output would be the right one
FIRST_FRESH_INDEX = 1_000_000
CHECKSUM_CHUNK = {"cpu": 2**15, "cuda": 2**22}  # words; on a CPU, one thread makes the factors of so few
# The most bytes that change places between two pairs: 8 sets of 256 kB took 0.2 ms on one core, where a pair takes
# 20 ms.
EXCHANGED_BYTES = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}
MOST_EXCHANGED = 8


def most_cached_bytes(device: torch.device) -> int:
    """Bytes that may stay in a cache from step to step: a GPU's L2, or a CPU's largest cache as Linux reports it."""
    if device.type == "cuda":  # cuda only
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
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
    change places between the sets, see `exchange`. `originals` has copies of the tensors of each set, by the set's
    `id`, where steps write to their inputs. `ragged`: the timed sets differ in more than the values of their tensors.
    """

    timed: tuple[Any, ...]
    fresh: tuple[Any, ...]
    fresh_index: int
    checksums: Mapping[str, int]
    contents: list[int] = field(default_factory=list)
    originals: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    ragged: bool = False

    def content_of(self, set_number: int) -> int:
        """Looks up the number of the content that a timed set has now."""
        return self.contents[set_number] if self.contents else set_number

    @property
    def restore(self) -> Callable[[Sequence[Any]], None] | None:
        """The function that gives sets their contents back, where steps write to their inputs."""
        return self._restore if self.originals else None

    def _restore(self, sets: Sequence[Any]) -> None:
        for one in sets:
            tensors, saved = list_tensors(one), self.originals[id(one)]
            if [tensor.shape for tensor in tensors] != [tensor.shape for tensor in saved]:
                problem = ValueError("a step added, removed or replaced a tensor: write to the tensors in place alone")
                raise SideError("inputs", "being restored", problem)
            _copy_tensors(tensors, saved)


def _copy_tensors(into: Sequence[torch.Tensor], source: Sequence[torch.Tensor]) -> None:
    with torch.inference_mode():
        for tensor, other in zip(into, source, strict=True):
            if not _repeats(tensor):  # torch writes to no such tensor
                tensor.data.copy_(other.data)


def _repeats(tensor: torch.Tensor) -> bool:
    """True for an expanded tensor, several of whose values stand at one place."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def checksums(sets: Sequence[Any]) -> dict[str, int]:
    """Sums, for each part of the sets, the bits by position and the versions of its tensors, or hashes of its values: a
    write changes a sum.

    An exchange of contents between sets changes no sum.
    """
    sums: dict[str, int] = {}
    for name, part in (pair for one in sets for pair in list_parts(one).items()):
        if isinstance(part, torch.Tensor):
            term = _bits(part) + (0 if part.is_inference() else part._version)
        else:
            term = zlib.crc32(repr(part).encode()) if isinstance(part, VALUES) else 0
        sums[name] = sums.get(name, 0) + term
    return sums


def _bits(tensor: torch.Tensor) -> int:
    """Sums a tensor's 64-bit words, each times another odd number, modulo 2^64: a permutation changes the sum."""
    values = bytes_of(tensor)
    whole = values.numel() // 8 * 8
    words, rest, most = values[:whole], values[whole:], CHECKSUM_CHUNK[tensor.device.type]
    words = (words.clone() if words.data_ptr() % 8 else words).view(torch.int64)
    make = _kept_factors if tensor.is_cpu else _make_factors
    factors = make(min(most, max(8, whole // 8)), tensor.device)
    total = int(rest.to(torch.int64).mul(factors[: rest.numel()]).sum()) if rest.numel() else 0
    for start in range(0, whole // 8, most):
        chunk, factor = words[start : start + most], factors[: whole // 8 - start]
        # On a CPU, `dot` needs one thread and no memory: beside another program it took 4 ms for 32 MB, in place of 70.
        total += (2 * start + 1) * int(torch.dot(chunk, factor) if chunk.is_cpu else chunk.mul(factor).sum())
    return total % 2**64


def _make_factors(count: int, device: torch.device) -> torch.Tensor:
    return torch.arange(count, device=device).mul_(2).add_(1)


# At most 256 kB each: up to 1024 small sets are checked twice a build, and half of the time went into these.
_kept_factors = lru_cache(maxsize=8)(_make_factors)


def check_untouched(inputs: Inputs, side: str) -> None:
    """Raises SideError, naming the parts, when the bits of any input set have changed."""
    if inputs.originals:
        return
    now, before = checksums((*inputs.timed, *inputs.fresh)), inputs.checksums
    changed = [name for name in {**before, **now} if now.get(name) != before.get(name)]
    if changed:
        named = f" ({', '.join(changed)})" if any(changed) else ""
        step = "copy them first, since the other side reads the same tensors, or declare Workload(writes_inputs=True)"
        raise SideError(side, "running its steps", ValueError(f"it wrote to its inputs{named}: {step}"))


def make_inputs(workload: Workload, context: Context, fresh_count: int, draw: random.Random) -> Inputs:
    """Makes timed sets 0, 1, ..., and fresh sets from a random, recorded index on.

    Raises TypeError for a set that is None, or that has tensors which the engine cannot find.
    """
    first = _input_set(workload, context, 0)
    size = byte_size(first)
    count = count_sets(size, most_cached_bytes(context.device), workload.cold)
    if workload.writes_inputs:
        count = max(count, min(MAX_SETS, WRITTEN_BYTES // max(1, size)))
    timed = (first, *(_input_set(workload, context, index) for index in range(1, count)))
    fresh_index = FIRST_FRESH_INDEX + draw.randrange(2**30)
    fresh = tuple(_input_set(workload, context, fresh_index + offset) for offset in range(fresh_count))
    contents = list(range(count)) if _exchangeable(timed) else []
    written = (*timed, *fresh) if workload.writes_inputs else ()
    originals = {id(one): [tensor.detach().clone() for tensor in list_tensors(one)] for one in written}
    sums = checksums((*timed, *fresh))
    return Inputs(timed, fresh, fresh_index, sums, contents, originals, _are_ragged(timed))


def _input_set(workload: Workload, context: Context, index: int) -> Any:
    inputs = workload.inputs(context, index)
    if inputs is None:
        raise TypeError(f"inputs(context, {index}) returned None: return what step() takes")
    parts = list_parts(inputs)
    unreadable = (
        f"a {'nested' if part.is_nested else part.layout} tensor in {name or 'its place'}, whose values cannot be read"
        for name, part in parts.items()
        if isinstance(part, torch.Tensor) and (part.is_nested or part.layout is not torch.strided)
    )
    opaque = opaque_part(parts) or next(unreadable, None)
    if opaque is not None:
        step = "return tensors, numbers and texts, in lists, dicts, data classes or other objects"
        raise TypeError(f"inputs(context, {index}) returned {opaque}: {step}")
    return inputs


def new_set(workload: Workload, context: Context, inputs: Inputs, number: int) -> Any:
    """Makes an input set that no step of this measurement has read; `number` counts from 0."""
    return _input_set(workload, context, inputs.fresh_index + len(inputs.fresh) + number)


def _exchangeable(sets: Sequence[Any]) -> bool:
    """True where contents can change places: the sets are alike, and each tensor has memory of its own."""
    tensors = [tensor for one in sets for tensor in list_tensors(one)]
    if not tensors or _are_ragged(sets) or not all(map(_owns_its_memory, tensors)):
        return False
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)


def _are_ragged(sets: Sequence[Any]) -> bool:
    """True where the sets differ in the forms of their tensors, or in other values, such as a length."""
    first = list_parts(sets[0]).values()

    def is_equal(part: Any, other: Any) -> bool:
        of_text = isinstance(part, int | float | str) and bool(part == other)
        return isinstance(part, torch.Tensor) or part is other or of_text

    return not all(same_form(one, sets[0]) and all(map(is_equal, list_parts(one).values(), first)) for one in sets[1:])


def same_form(one: Any, other: Any) -> bool:
    """True for two input sets that differ in the values of their tensors alone."""
    parts, others = list_parts(one), list_parts(other)
    return [*parts] == [*others] and [*map(_form, parts.values())] == [*map(_form, others.values())]


def _form(leaf: Any) -> tuple[Any, ...]:
    if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided:
        return (type(leaf),)
    return leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.is_pinned()


def _owns_its_memory(tensor: torch.Tensor) -> bool:
    """True for a tensor that spans its whole storage: no other tensor has a part of that memory."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.numel() > 0
    size = tensor.numel() * tensor.element_size()
    return plain and not _repeats(tensor) and tensor.untyped_storage().nbytes() == size


def exchange(inputs: Inputs, sets: Sequence[int], draw: random.Random) -> None:
    """Gives each of these timed sets the content of another of these sets, in place and without a new
    `Tensor._version`.

    An output that a side keeps by address, by tensor object or by version is wrong afterwards. Nothing happens where
    contents cannot change places, and for a single set. The device is idle before and after.
    """
    order = draw.sample(list(sets), len(sets))
    if not inputs.contents or len(order) < 2:
        return
    sets = [inputs.timed[number] for number in order]
    places = [list_tensors(one) for one in sets]
    kept = [tensor.detach().clone() for tensor in places[0]]
    for into, source in itertools.pairwise([*places, kept]):
        _copy_tensors(into, source)
    if kept[0].is_cuda:
        torch.cuda.synchronize(kept[0].device)  # cuda only  # a side may read them on a stream of its own
    _move_on(inputs.contents, order)
    if inputs.originals:
        _move_on(inputs.originals, [id(one) for one in sets])


def _move_on(values: Any, keys: Sequence[int]) -> None:
    """Gives the value of each key to the key before it, and that of the first key to the last one."""
    moved = [values[key] for key in keys]
    for key, value in zip(keys, [*moved[1:], moved[0]], strict=True):
        values[key] = value


def exchange_used(inputs: Inputs, used: Sequence[int], draw: random.Random) -> None:
    """Exchanges contents among the timed sets that the last steps of a side read, given by their numbers.

    These sets are in the cache already, so the sets of the next block stay cold. Each call moves at most
    EXCHANGED_BYTES; where two sets are larger, correspondingly fewer calls move two sets.
    """
    if not inputs.contents:
        return
    size, sets = byte_size(inputs.timed[0]), list(dict.fromkeys(used))
    allowed = EXCHANGED_BYTES[list_tensors(inputs.timed[0])[0].device.type]
    if draw.random() * 2 * size > allowed:
        return
    exchange(inputs, draw.sample(sets, min(len(sets), max(2, allowed // size), MOST_EXCHANGED)), draw)

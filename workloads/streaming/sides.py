"""Sides that stream a file through the device one block after another, and those whose blocks are on it already.

A step gets the numbers of its blocks, int64 [items], and returns their record in that order: float64 [items, 3], see
`record`. On a CPU the kernel reads the host's buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.parts.random_inputs import host_generator
from workloads.parts.stages import stage
from workloads.streaming.blocks import Regime, StreamFile, half_sums, record

Regimes = Mapping[str, Regime]  # by kind of device
STAGING_BUFFERS = 3


def block_numbers(regimes: Regimes, context: Context, index: int) -> Tensor:
    """Input set `index`: int64 [items] on the host, block numbers; no block repeats before all others were used."""
    blocks = regimes[context.device.type].blocks
    random = host_generator(context, index)
    orders = [torch.randperm(blocks, generator=random) for _ in range(-(-context.items // blocks))]
    return torch.cat(orders)[: context.items]


def regime_of(regimes: Regimes, context: Context) -> Regime:
    """The regime of the device; on a CPU the kernel gets one thread as the device, and the host the other cores."""
    if context.device.type == "cpu":
        torch.set_num_threads(1)
    return regimes[context.device.type]


def file_of(regime: Regime, context: Context) -> StreamFile:
    return StreamFile(context.cache_dir, regime, context.seed)


def cached(regime: Regime, context: Context) -> Callable[[], None]:
    """A function that runs the kernels of a step on one block that lies on the device."""
    kernel = regime.kernel(context.device)
    random = torch.Generator().manual_seed(context.seed)
    block = torch.randint(-128, 128, (regime.rows, regime.points), generator=random).float().to(context.device)

    def cached_step() -> None:
        for _ in range(context.items):
            kernel(block)

    return cached_step


def blocking(regime: Regime, device: torch.device, pinned: bool) -> Callable[[Tensor], Tensor]:
    """Makes the function that gets a block on the host and returns its result there: all work is over by then.

    On CUDA a result lasts until the next call.
    """
    kernel = regime.kernel(device)

    def compute(block: Tensor) -> Tensor:
        with stage("compute", 1):
            return kernel(block)

    if device.type == "cpu":
        return compute
    inputs = torch.empty(regime.rows, regime.points, device=device)  # cuda only
    host_result = regime.host_result(pinned)  # cuda only

    def copy_and_compute(block: Tensor) -> Tensor:  # cuda only
        with stage("copy in", 1):
            inputs.copy_(block)
        result = compute(inputs)
        with stage("copy out", 1):
            return host_result.copy_(result)

    return copy_and_compute  # cuda only


def in_a_row(regimes: Regimes, pinned: bool, context: Context) -> Side:
    """Reads, copies in, computes, copies out and checks in turn. Buffers are pageable unless `pinned`.

    Steps raise ValueError for a block with a wrong result: all other sides are compared with this one.
    """
    regime = regime_of(regimes, context)
    block, device = regime.host_block(pinned), blocking(regime, context.device, pinned)
    file = file_of(regime, context)
    known = regime.known(file.checksums)

    def sums(number: int) -> Tensor:
        with stage("read", 1):
            file.read_into(number, block)
        result = device(block)
        with stage("check", 1):
            return regime.wanted(result)

    def step(numbers: Tensor) -> Tensor:
        found = record(torch.stack([sums(number) for number in numbers.tolist()]), known[numbers])
        wrong = numbers[found[:, 0] == 0].tolist()
        if wrong:
            raise ValueError(f"blocks {wrong} of {file.path} came back wrong: remove the file, to have it remade")
        return found

    return Side(step, close=file.close, cached_step=cached(regime, context))


def _resident(regimes: Regimes, context: Context) -> tuple[Regime, Tensor, Tensor]:  # cuda only
    """The regime, its whole file on the device, [blocks, rows, points], and the known sums of each block's result."""
    regime = regime_of(regimes, context)
    with closing(file_of(regime, context)) as file:
        blocks = torch.empty(regime.blocks, regime.rows, regime.points)
        for number, block in enumerate(blocks):
            file.read_into(number, block)
        return regime, blocks.to(context.device), regime.known(file.checksums).to(context.device)


def resident_in_a_row(regimes: Regimes, context: Context) -> Side:  # cuda only
    """Kernel and checksum of one block after another, on one stream; blocks and record stay on the device."""
    regime, blocks, known = _resident(regimes, context)
    kernel = regime.kernel(context.device)

    def step(numbers: Tensor) -> Tensor:
        sums = [half_sums(kernel(blocks[number])) for number in numbers.tolist()]
        return record(torch.stack(sums), known[numbers.to(context.device, non_blocking=True)])

    return Side(step, cached_step=cached(regime, context))


def resident_at_once(regimes: Regimes, context: Context) -> Side:  # cuda only
    """The kernel and checksum behind a pipeline: a copy stream fills the next buffers while the kernel works on one.

    It shows the cost of a pipeline that has nothing to hide.
    """
    regime, blocks, known = _resident(regimes, context)
    kernel, copy = regime.kernel(context.device), torch.cuda.Stream(context.device)  # type: ignore[no-untyped-call]
    buffers = [torch.empty(regime.rows, regime.points, device=context.device) for _ in range(STAGING_BUFFERS)]
    filled, emptied = ([torch.cuda.Event() for _ in buffers] for _ in range(2))  # type: ignore[no-untyped-call]
    turn = itertools.cycle(range(STAGING_BUFFERS))

    def sums(block: Tensor) -> Tensor:
        """int64 [2]: the sums of the kernel's result for a block, all of them on the device."""
        place, compute = next(turn), torch.cuda.current_stream(context.device)
        copy.wait_event(emptied[place])
        with copy:
            buffers[place].copy_(block)
        filled[place].record(copy)
        compute.wait_event(filled[place])
        found = half_sums(kernel(buffers[place]))
        emptied[place].record(compute)
        return found

    def step(numbers: Tensor) -> Tensor:
        found = torch.stack([sums(blocks[number]) for number in numbers.tolist()])
        return record(found, known[numbers.to(context.device, non_blocking=True)])

    join = partial(torch.cuda.synchronize, context.device)
    return Side(step, finish=join, close=join, cached_step=cached(regime, context))

"""Streams of blocks that lie on the device already: the cost of a pipeline that has nothing to hide.

The steps have the inputs and outputs of those in `stream_sides`. CUDA only.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.streaming.block_checksum import half_sums, record
from workloads.streaming.stream_device import Regime
from workloads.streaming.stream_sides import Regimes, cached, file_of, regime_of

STAGING_BUFFERS = 3


def _blocks_of_file(regime: Regime, context: Context) -> tuple[Tensor, Tensor]:  # cuda only
    """The whole file, float32 [blocks, rows, points] on the device, and the known sums of each block's result."""
    file = file_of(regime, context)
    try:
        blocks = torch.empty(regime.blocks, regime.rows, regime.points)
        for number, block in enumerate(blocks):
            file.read_into(number, block)
        return blocks.to(context.device), regime.known(file.checksums).to(context.device)
    finally:
        file.close()


def resident_in_a_row(regimes: Regimes, context: Context) -> Side:  # cuda only
    """Kernel and checksum of one block after another, on one stream; the record stays on the device."""
    regime = regime_of(regimes, context)
    blocks, known = _blocks_of_file(regime, context)
    kernel = regime.kernel(context.device)

    def step(numbers: Tensor) -> Tensor:
        sums = [half_sums(kernel(blocks[number])) for number in numbers.tolist()]
        return record(torch.stack(sums), known[numbers.to(context.device, non_blocking=True)])

    return Side(step, cached_step=cached(regime, context))


class Staging:  # cuda only
    """Buffers on the device that a copy stream fills in turn while the kernel works on another of them."""

    def __init__(self, regime: Regime, device: torch.device) -> None:
        self._device, self._kernel = device, regime.kernel(device)
        self._copy = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = [torch.empty(regime.rows, regime.points, device=device) for _ in range(STAGING_BUFFERS)]
        self._filled, self._emptied = ([torch.cuda.Event() for _ in self._buffers] for _ in range(2))  # type: ignore[no-untyped-call]
        self._turn = itertools.cycle(range(STAGING_BUFFERS))

    def sums(self, block: Tensor) -> Tensor:
        """int64 [2]: the sums of the kernel's result for a block, all of them on the device."""
        place, compute = next(self._turn), torch.cuda.current_stream(self._device)
        self._copy.wait_event(self._emptied[place])
        with self._copy:
            self._buffers[place].copy_(block)
        self._filled[place].record(self._copy)
        compute.wait_event(self._filled[place])
        found = half_sums(self._kernel(self._buffers[place]))
        self._emptied[place].record(compute)
        return found


def resident_at_once(regimes: Regimes, context: Context) -> Side:  # cuda only
    """The kernel and checksum behind a pipeline: a copy stream fills the next buffers while the kernel works on one."""
    regime = regime_of(regimes, context)
    blocks, known = _blocks_of_file(regime, context)
    staging = Staging(regime, context.device)

    def step(numbers: Tensor) -> Tensor:
        found = torch.stack([staging.sums(blocks[number]) for number in numbers.tolist()])
        return record(found, known[numbers.to(context.device, non_blocking=True)])

    join = partial(torch.cuda.synchronize, context.device)
    return Side(step, finish=join, close=join, cached_step=cached(regime, context))

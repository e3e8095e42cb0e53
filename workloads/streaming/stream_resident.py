"""Streams that no file feeds: blocks that lie on the device already, and blocks that lie in page-locked memory.

The first show what a pipeline costs where it has nothing to hide; the last is the bus alone, the ceiling of a stream
whose longest stage is the copy in. Steps take and return what those of `stream_sides` do. CUDA only.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.ring import Ring
from workloads.slots import StagedSlot, wait
from workloads.streaming.block_checksum import RECORD, half_sums, record
from workloads.streaming.stream_device import Regime, StagedDevice, pageable, staged_slot
from workloads.streaming.stream_sides import Regimes, cached, file_of, regime_of

STAGING_BUFFERS = 3


def _blocks_of_file(regime: Regime, context: Context, pinned: bool) -> tuple[Tensor, Tensor]:
    """The whole file, float32 [blocks, rows, points] on the host, and what must be known of each block's result."""
    file = file_of(regime, context)
    try:
        blocks = torch.empty(regime.blocks, regime.rows, regime.points, pin_memory=pinned)
        for number, block in enumerate(blocks):
            file.read_into(number, block)
        return blocks, regime.known(file.checksums)
    finally:
        file.close()


def resident_in_a_row(regimes: Regimes, context: Context) -> Side:  # cuda only
    """Kernel and checksum of one block after another, on one stream; the record stays on the device."""
    regime = regime_of(regimes, context)
    blocks, known = (each.to(context.device) for each in _blocks_of_file(regime, context, pinned=False))
    kernel = regime.kernel(context.device)

    def step(numbers: Tensor) -> Tensor:
        sums = [half_sums(kernel(blocks[number])) for number in numbers.tolist()]
        return record(torch.stack(sums), known[numbers.to(context.device, non_blocking=True)])

    return Side(step, cached_step=cached(regime, context))


def resident_at_once(regimes: Regimes, context: Context) -> Side:  # cuda only
    """The same behind a pipeline: a copy stream fills the next buffers while the kernel works on one of them."""
    regime = regime_of(regimes, context)
    blocks, known = (each.to(context.device) for each in _blocks_of_file(regime, context, pinned=False))
    kernel, copy = regime.kernel(context.device), torch.cuda.Stream(context.device)  # type: ignore[no-untyped-call]
    buffers = [torch.empty_like(blocks[0]) for _ in range(STAGING_BUFFERS)]
    filled, emptied = ([torch.cuda.Event() for _ in buffers] for _ in range(2))  # type: ignore[no-untyped-call]
    turn = itertools.cycle(range(STAGING_BUFFERS))

    def sums(number: int) -> Tensor:
        place, compute = next(turn), torch.cuda.current_stream(context.device)
        copy.wait_event(emptied[place])
        with copy:
            buffers[place].copy_(blocks[number])
        filled[place].record(copy)
        compute.wait_event(filled[place])
        result = half_sums(kernel(buffers[place]))
        emptied[place].record(compute)
        return result

    def step(numbers: Tensor) -> Tensor:
        found = torch.stack([sums(number) for number in numbers.tolist()])
        return record(found, known[numbers.to(context.device, non_blocking=True)])

    join = partial(torch.cuda.synchronize, context.device)
    return Side(step, finish=join, close=join, cached_step=cached(regime, context))


def bus_alone(regimes: Regimes, context: Context) -> Side:  # cuda only
    """The pipeline without a file: every block lies in page-locked memory, so that only the bus is waited for.

    For a regime without rounds, where the sums of a block are all that comes back.
    """
    regime = regime_of(regimes, context)
    blocks, known = _blocks_of_file(regime, context, pinned=True)
    ring = Ring([staged_slot(regime, context.device, blocks[0]) for _ in range(regime.buffers)], wait)
    device = StagedDevice(regime, context.device)
    unfilled: list[tuple[Tensor, Tensor, Tensor]] = []

    def submit(slot: StagedSlot, block: Tensor, sums: Tensor) -> None:
        slot.host.inputs, slot.host.output = block, sums
        device.submit(slot)

    def step(numbers: Tensor) -> Tensor:
        sums = torch.empty(len(numbers), 2, dtype=torch.int64, pin_memory=True)
        for row, number in zip(sums, numbers.tolist(), strict=True):
            submit(ring.take(), blocks[number], row)
        filled_later = torch.empty(len(numbers), RECORD, dtype=torch.float64)
        unfilled.append((filled_later, sums, known[numbers]))
        return filled_later

    def finish() -> None:
        torch.cuda.synchronize(context.device)
        for output, sums, wanted in unfilled:
            output.copy_(record(sums, wanted))
        unfilled.clear()

    def close() -> None:
        torch.cuda.synchronize(context.device)

    return Side(step, None, finish, partial(pageable, [blocks]), close, cached_step=cached(regime, context))

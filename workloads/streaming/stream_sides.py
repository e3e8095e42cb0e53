"""Sides that stream a file through the device: one block after another, or reading, copying and computing at once.

A step gets the numbers of its blocks, int64 [items], and returns their record in that order: float64 [items, 3], see
`record`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.parts.random_inputs import host_generator
from workloads.parts.slots import StagedSlot, wait
from workloads.parts.stages import stage
from workloads.streaming.block_checksum import RECORD, record
from workloads.streaming.stream_device import BlockingDevice, HostSlot, Regime, StagedDevice, pageable, staged_slot
from workloads.streaming.stream_file import Layout, StreamFile, open_stream_file
from workloads.streaming.stream_pipeline import Pipeline, Stages

Regimes = Mapping[str, Regime]  # by kind of device


class Records:
    """Records of steps with blocks in flight; `known` is int64 [blocks of the file, 2]."""

    def __init__(self, known: Tensor) -> None:
        self._known = known
        self._open: deque[tuple[Tensor, Tensor, Sequence[Future[Tensor]]]] = deque()

    def begin(self, numbers: Tensor, sums: Sequence[Future[Tensor]]) -> Tensor:
        """The record of these blocks, which `fill` completes once their sums are available."""
        filled_later = torch.empty(len(sums), RECORD, dtype=torch.float64)
        self._open.append((filled_later, numbers, sums))
        return filled_later

    def fill(self, leave_open: int = 0) -> None:
        """Waits for the sums of all records but the last `leave_open`; raises the error of consuming a block."""
        while len(self._open) > leave_open:
            filled_now, numbers, sums = self._open.popleft()
            filled_now.copy_(record(torch.stack([each.result() for each in sums]), self._known[numbers]))


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
    layout = Layout(regime.rows, regime.points, regime.blocks, context.seed)
    return open_stream_file(context.cache_dir, layout)


def join(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # cuda only


def cached(regime: Regime, context: Context) -> Callable[[], None]:
    """A function that runs the kernels of a step on one block that lies on the device."""
    kernel = regime.kernel(context.device)
    random = torch.Generator().manual_seed(context.seed)
    block = torch.randint(-128, 128, (regime.rows, regime.points), generator=random).float().to(context.device)

    def cached_step() -> None:
        for _ in range(context.items):
            kernel(block)

    return cached_step


def in_a_row(regimes: Regimes, pinned: bool, context: Context) -> Side:
    """Reads, copies in, computes, copies out and checks in turn. Buffers are pageable unless `pinned`.

    Steps raise ValueError for a block with a wrong result: all other sides are compared with this one.
    """
    regime = regime_of(regimes, context)
    block, device = regime.host_block(pinned), BlockingDevice(regime, context.device, pinned)
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

    def engaged() -> str | None:
        return pageable([block, device.result]) if pinned else None  # cuda only

    return Side(step, engaged=engaged, close=file.close, cached_step=cached(regime, context))


def read_by_threads(regimes: Regimes, context: Context) -> Side:
    """Threads read ahead into a ring of buffers; copies, compute and checks still wait for each other."""
    regime = regime_of(regimes, context)
    device = BlockingDevice(regime, context.device, pinned=context.device.type == "cuda")
    return _on_host(regime, context, device, regime.buffers, consumers=0)


def at_once(regimes: Regimes, context: Context, buffers: int | None = None) -> Side:
    """Every stage works on another block: readers, copy in, compute, copy out, consumers.

    `buffers` replaces the regime's number of them.
    """
    regime = regime_of(regimes, context)
    count = buffers or regime.buffers
    if context.device.type == "cpu":
        device = BlockingDevice(regime, context.device, pinned=False)
        return _on_host(regime, context, device, count, regime.consumers)
    return _staged(regime, context, count)  # cuda only


def reading(regime: Regime, file: StreamFile) -> Callable[[int, Tensor], None]:
    """The read function of a reader thread: it reads by itself, or with a team."""
    if not regime.team:
        return file.read_into
    # For this side alone: the engine keeps the number of each side. A thread adopts the number at its first copy.
    torch.set_num_threads(regime.team)
    file.map_pages()
    return file.copy_into


def _on_host(regime: Regime, context: Context, device: BlockingDevice, count: int, consumers: int) -> Side:
    slots = [HostSlot(regime.host_block(device.pinned), torch.empty(0)) for _ in range(count)]
    file = file_of(regime, context)

    def submit(slot: HostSlot) -> None:
        slot.result = device(slot.inputs)

    read = reading(regime, file)
    stages = Stages[HostSlot](
        read=lambda slot, number: read(number, regime.piece(number, slot.inputs)),
        submit=submit,
        consume=lambda slot: regime.wanted(slot.result),
        pieces=regime.pieces,
    )
    return over_a_ring(regime, context, file, Pipeline(slots, stages, regime.readers, consumers))


def _staged(regime: Regime, context: Context, count: int) -> Side:  # cuda only
    slots = [staged_slot(regime, context.device) for _ in range(count)]
    device, file = StagedDevice(regime, context.device), file_of(regime, context)

    def consume(slot: StagedSlot) -> Tensor:
        wait(slot)
        return regime.wanted(slot.host.output)

    read = reading(regime, file)
    stages = Stages[StagedSlot](
        read=lambda slot, number: read(number, regime.piece(number, slot.host.inputs)),
        submit=device.submit,
        consume=consume,
        pieces=regime.pieces,
    )
    return over_a_ring(regime, context, file, Pipeline(slots, stages, regime.readers, regime.consumers))


def over_a_ring(regime: Regime, context: Context, file: StreamFile, pipeline: Pipeline[Any]) -> Side:
    """The side of a pipeline: a step returns when its last block is submitted and the step before it is over.

    Its record is filled by then or by `finish()`. An error in any stage ends all threads before it is raised.
    """
    records = Records(regime.known(file.checksums))

    def step(numbers: Tensor) -> Tensor:
        with pipeline.closed_on_error():
            begun = records.begin(numbers, pipeline.stream(numbers.tolist()))
            records.fill(leave_open=1)
        return begun

    def finish() -> None:
        with pipeline.closed_on_error():
            records.fill()
        join(context.device)

    def close() -> None:
        pipeline.close()
        join(context.device)  # before the page-locked buffers are freed
        file.close()

    engaged = partial(not_overlapped, pipeline, context.device)
    stock_steps = math.ceil(len(pipeline.slots) / context.items)
    return Side(step, None, finish, engaged, close, stock_steps, cached(regime, context))


def not_overlapped(pipeline: Pipeline[Any], device: torch.device) -> str | None:
    """The reason why the pipeline did not overlap, or None."""
    if len(pipeline.slots) > 1 and pipeline.most_in_flight < 2:
        return f"never more than {pipeline.most_in_flight} block was on its way, with {len(pipeline.slots)} buffers"
    if device.type == "cpu":
        return None
    return pageable([buffer for slot in pipeline.slots for buffer in _host_buffers(slot)])  # cuda only


def _host_buffers(slot: HostSlot | StagedSlot) -> tuple[Tensor, ...]:  # cuda only
    return (slot.inputs, slot.result) if isinstance(slot, HostSlot) else (slot.host.inputs, slot.host.output)

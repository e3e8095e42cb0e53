"""Sides that stream a file through the device: one block after another, or each stage at work on another block.

A step gets the numbers of its blocks, int64 [items], and returns their record in that order: float64 [items, 3], see
`record`. On a CPU the kernel reads the host's buffer.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.parts.random_inputs import host_generator
from workloads.parts.stages import stage
from workloads.streaming.blocks import RECORD, Regime, StreamFile, half_sums, record

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


# --- every stage at work on another block -----------------------------------------------------------------------------


@dataclass
class Slot:
    """A place in the ring: the block as it was read, and the result of the kernel."""

    block: Tensor
    result: Tensor = field(default_factory=lambda: torch.empty(0))


class Ring:
    """A ring of slots, with reader threads before the device and consumer threads after it; 0: the caller consumes.

    Sequential time is the sum of the stages, pipelined time their maximum. The ring bounds the blocks in flight: a
    reader waits until the last block of its slot is consumed. Readers share the first block that is not read yet, in
    pieces: the device then waits for a piece at the beginning of a step, and never for the last reader of a whole block
    at its end. A step returns when its last block is submitted and the step before it is over; its record is filled by
    then or by `finish`.
    """

    def __init__(
        self,
        regime: Regime,
        context: Context,
        slots: Sequence[Any],  # each with a `block` on the host
        consumers: int,
        submit: Callable[[Any], object],  # in order, on the caller's thread; the device may be at work when it returns
        consume: Callable[[Any], Tensor],  # waits for the device, and returns the wanted sums
    ) -> None:
        self.slots, self.most_in_flight = slots, 0  # the most slots in use by blocks at the same time
        self._regime, self._device, self._submit, self._consume = regime, context.device, submit, consume
        self._file = file_of(regime, context)
        self._read_piece = self._file.read_into
        if regime.team:
            # For this side alone: the engine keeps the number of each side. A thread adopts it at its first copy.
            torch.set_num_threads(regime.team)
            self._file.map_pages()
            self._read_piece = self._file.copy_into
        self._places = itertools.cycle(range(len(slots)))
        self._last: list[Future[Tensor] | None] = [None] * len(slots)  # the sums of the last block of each slot
        self._in_flight, self._counting = 0, threading.Lock()
        self._readers = ThreadPoolExecutor(regime.readers, "stream-reader")
        self._consumers = ThreadPoolExecutor(consumers, "stream-consumer") if consumers else None
        self._known = regime.known(self._file.checksums)
        self._unfilled = deque[tuple[Tensor, Tensor, list[Future[Tensor]]]]()

    def step(self, numbers: Tensor) -> Tensor:
        asked, sums = deque[tuple[int, list[Future[None]]]](), list[Future[Tensor]]()
        for number in numbers.tolist():
            if len(asked) == len(self.slots):
                sums.append(self._pass_on(*asked.popleft()))
            asked.append(self._ask(number))
        sums += [self._pass_on(*each) for each in asked]
        found = torch.empty(len(sums), RECORD, dtype=torch.float64)
        self._unfilled.append((found, numbers, sums))
        self._fill(leave=1)
        return found

    def finish(self) -> None:
        self._fill(leave=0)
        self._join()

    def close(self) -> None:
        """Ends and joins all threads; blocks that are not read or consumed by then are dropped."""
        for threads in (self._readers, self._consumers):
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)
        self._join()  # before the page-locked buffers are freed
        self._file.close()

    def engaged(self) -> str | None:
        if len(self.slots) == 1 or self.most_in_flight > 1:
            return None
        return f"never more than {self.most_in_flight} block was on its way, with {len(self.slots)} buffers"

    def _ask(self, number: int) -> tuple[int, list[Future[None]]]:
        """Asks the readers for the pieces of a block; returns the place of its slot, and their futures."""
        place, first = next(self._places), number * self._regime.pieces
        last = self._last[place]

        def read(piece: int) -> None:
            if last is not None:
                last.result()
            if piece == first:
                self._count(1)
            with stage("read"):
                self._read_piece(piece, self._regime.piece(piece, self.slots[place].block))

        return place, [self._readers.submit(read, piece) for piece in range(first, first + self._regime.pieces)]

    def _pass_on(self, place: int, reads: list[Future[None]]) -> Future[Tensor]:
        """Submits a block that is read to the device; returns the future of its sums."""
        for each in reads:
            each.result()
        slot = self.slots[place]
        self._submit(slot)
        if self._consumers is None:
            sums: Future[Tensor] = Future()
            sums.set_result(self._check(slot))
        else:
            sums = self._consumers.submit(self._check, slot)
        self._last[place] = sums
        return sums

    def _check(self, slot: Any) -> Tensor:
        with stage("check"):
            sums = self._consume(slot)
        self._count(-1)
        return sums

    def _count(self, change: int) -> None:
        with self._counting:
            self._in_flight += change
            self.most_in_flight = max(self.most_in_flight, self._in_flight)

    def _fill(self, leave: int) -> None:
        """Waits for the sums of all records but the last `leave`; raises the error of consuming a block."""
        while len(self._unfilled) > leave:
            found, numbers, sums = self._unfilled.popleft()
            found.copy_(record(torch.stack([each.result() for each in sums]), self._known[numbers]))

    def _join(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # cuda only


def _side(ring: Ring, regime: Regime, context: Context) -> Side:
    stock_steps = math.ceil(len(ring.slots) / context.items)
    return Side(ring.step, None, ring.finish, ring.engaged, ring.close, stock_steps, cached(regime, context))


def read_by_threads(regimes: Regimes, context: Context) -> Side:
    """Threads read ahead into a ring of buffers; copies, compute and checks still wait for each other."""
    regime = regime_of(regimes, context)
    return _on_host(regime, context, context.device.type == "cuda", regime.buffers, consumers=0)


def _on_host(regime: Regime, context: Context, pinned: bool, count: int, consumers: int) -> Side:
    device = blocking(regime, context.device, pinned)

    def submit(slot: Slot) -> None:
        slot.result = device(slot.block)

    slots = [Slot(regime.host_block(pinned)) for _ in range(count)]
    ring = Ring(regime, context, slots, consumers, submit, lambda slot: regime.wanted(slot.result))
    return _side(ring, regime, context)


class StagedSlot:  # cuda only
    """A slot whose copies run on streams of their own: its buffers, and the events that order what is done to them."""

    def __init__(self, regime: Regime, device: torch.device) -> None:
        # Waiting for an ordinary event is a busy loop: many waiting threads would take the cores of the others.
        self.done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # no host buffer is used any more
        self.block, self.host_result = regime.host_block(pinned=True), regime.host_result(pinned=True)
        self.inputs = torch.empty(regime.rows, regime.points, device=device)
        self.arrived, self.computed = (torch.cuda.Event() for _ in range(2))  # type: ignore[no-untyped-call]
        self.result: Tensor | None = None


def at_once(regimes: Regimes, context: Context, buffers: int | None = None) -> Side:
    """Every stage works on another block: readers, copy in, compute, copy out, consumers.

    `buffers` replaces the regime's number of them. On CUDA there is a stream for each direction of copying, and the
    kernel runs on the caller's; only streams wait, for each other.
    """
    regime = regime_of(regimes, context)
    count = buffers or regime.buffers
    if context.device.type == "cpu":
        return _on_host(regime, context, False, count, regime.consumers)
    slots = [StagedSlot(regime, context.device) for _ in range(count)]  # cuda only
    kernel = regime.kernel(context.device)  # cuda only
    copy_in, copy_out = (torch.cuda.Stream(context.device) for _ in range(2))  # type: ignore[no-untyped-call]  # cuda only

    def submit(slot: StagedSlot) -> None:  # cuda only
        compute = torch.cuda.current_stream(context.device)
        with stage("copy in", 1), copy_in:
            slot.inputs.copy_(slot.block, non_blocking=True)
        slot.arrived.record(copy_in)
        compute.wait_event(slot.arrived)
        # The slot keeps the result until its next turn, when the copy out is known to be over: see two_layer_net.
        with stage("compute", 1):
            slot.result = kernel(slot.inputs)
        slot.computed.record(compute)
        copy_out.wait_event(slot.computed)
        with stage("copy out", 1), copy_out:
            slot.host_result.copy_(slot.result, non_blocking=True)
        slot.done.record(copy_out)

    def consume(slot: StagedSlot) -> Tensor:  # cuda only
        if not slot.done.query():  # type: ignore[no-untyped-call]
            slot.done.synchronize()
        return regime.wanted(slot.host_result)

    return _side(Ring(regime, context, slots, regime.consumers, submit, consume), regime, context)  # cuda only


# --- blocks that are on the device already ----------------------------------------------------------------------------


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

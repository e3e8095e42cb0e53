"""Builds of both sides of a case, and pairs of blocks, one of each side, next to each other.

Drift hits both blocks of a pair, and their order alternates (ABBA). A build is the unit of replication for effects that
pairs cannot show. Its first side is timed before the other one is built, and again beside it: a side can slow the
reference by any function that both call, or by threads that never rest. No list of functions shows that, and the
reference's own time does.

Loaders work ahead. While one side is timed, the other side's workers would refill their queues on the same cores. A
wait for the end of the refill takes seconds where a batch does, and two versions of one loader with eight workers then
differed by 10 % at random. In a duet, signals stop the workers of the idle side, which needs no wait; their side runs
untimed steps first, until its queues are in their steady state again.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from time import perf_counter, sleep
from typing import Any

from gpugate.errors import SideError
from gpugate.machine.children import start_apart
from gpugate.machine.processes import list_descendants
from gpugate.measurement.cold_inputs import Inputs, check_untouched
from gpugate.measurement.device_timer import POWER_CAP, HostTimer, ReadClock
from gpugate.measurement.host_counters import BEGAN, CpuCounters
from gpugate.measurement.record import ClockReading, Pair, TimedBuild
from gpugate.measurement.settings import BLOCK_MS, SLOWED
from gpugate.measurement.sides import BuiltSide, build_side, fingerprint, release
from gpugate.measurement.warm_up import MAX_STEPS_PER_BLOCK
from gpugate.workload import Case, Context

# A throttled pair is dropped only while at least as many were kept: a run never ends with no samples.
MAX_DISCARDED_PER_KEPT = 1
FREE_DISCARDS = 4
# A capped clock is normal, but it swings: two identical sides of a power-hungry model differed by 2 % from pair to pair
# (1425 to 1890 of 1980 MHz), where a model that stays below the limit differs by 0.05 %. After a cool-down, the GPU
# runs the blocks of both sides at its clock for short bursts. The time doubles with each capped clock.
FIRST_COOL_DOWN_S = 0.02  # as long as a block
LONGEST_COOL_DOWN_S = 0.16
# The first milliseconds of a block beside another side are slow where the host decides: an H200's records of 33 such
# cases have a reference that takes 2.7 % longer after the other side than after itself, and up to 8 %.
LEAD_IN = 0.15  # of the steps of a block, which run untimed before it


@dataclass
class Pairing:
    """Takes the pairs of one build; throttled and capped pairs are discarded and counted."""

    both: BothSides
    inputs: Sequence[Any]
    timer: HostTimer
    read_clock: ReadClock
    reference_first: bool
    cool_down_s: float = 0.0  # for which the device idles before every block; 0 until a clock was capped
    cpu: tuple[CpuCounters, CpuCounters] = field(default_factory=lambda: (CpuCounters(), CpuCounters()))
    exchange: Callable[[BuiltSide], None] = lambda side: None  # of inputs' contents, after the optimized side's blocks
    pairs: list[Pair] = field(default_factory=list)
    discarded: int = 0
    throttled_by: set[str] = field(default_factory=set)
    sleep: Callable[[float], None] = sleep
    stop_idle: bool = False  # the workers of the other side, while a side is timed
    workers: set[int] = field(default_factory=set)  # of both sides, when the first pair begins

    def settle(self) -> None:
        """Runs one pair and discards it: the first pair after a build or a pause is slow, not equally on both sides.

        Where loaders work ahead, the pair is a short one, which still uses up their stock.
        """
        for side in (self.both.reference, self.both.optimized):
            self._begin_turn(side)
            step_ms = side.timed_block(self.inputs, self.timer.time_ms, steps=side.side.stock_steps or None)
            self._await_refill(side, step_ms)
        self.workers = list_descendants()

    def take(self, count: int, go_on: Callable[[], bool]) -> None:
        """Takes pairs until this call has kept `count` of them or `go_on` returns False."""
        wanted = len(self.pairs) + count
        while len(self.pairs) < wanted and go_on():
            self._take_one()

    def _take_one(self) -> None:
        sides = (self.both.reference, self.both.optimized)
        first, second = sides if self.reference_first else sides[::-1]
        before = self.read_clock()
        first_ms, between = self._run_block(first)
        second_ms, after = self._run_block(second)
        pair = Pair(
            reference_ms=first_ms if self.reference_first else second_ms,
            optimized_ms=second_ms if self.reference_first else first_ms,
            reference_first=self.reference_first,
            sm_clock_mhz=after.sm_clock_mhz,
        )
        self.exchange(self.both.optimized)
        self.reference_first = not self.reference_first
        throttled_by = {reason for reading in (before, between, after) for reason in reading.throttled_by}
        # Right after a block the clock is that of the block; before the first block, it is that of an idle GPU.
        if (between.capped or after.capped) and self.cool_down_s < LONGEST_COOL_DOWN_S:
            self.cool_down_s = max(FIRST_COOL_DOWN_S, 2 * self.cool_down_s)
            throttled_by.add(POWER_CAP)
        self._keep(pair, throttled_by)

    def _run_block(self, side: BuiltSide) -> tuple[float, ClockReading]:
        """Times a block, and reads the clock of the GPU right after it.

        The CPU time of a side with a stock is that of all its steps, untimed ones included, until the stock is full
        again: its workers then did as many steps as the side took.
        """
        self._begin_turn(side)
        if self.cool_down_s:
            self.sleep(self.cool_down_s)
        cpu, stock = self.cpu[side is self.both.optimized], side.side.stock_steps
        begin = partial(cpu.begin, self.workers - self._other(side).workers)
        end = (lambda step_ms: None) if stock else partial(cpu.end, side.steps_per_block)
        # A stock is used up by untimed steps already, and steps that write to their inputs read each set once.
        lead_in = 0 if stock or side.restore else int(LEAD_IN * side.steps_per_block)
        step_ms = side.timed_block(self.inputs, self.timer.time_ms, lead_in=lead_in, begin=begin, end=end)
        cpu.waits_ms += side.take_waits_ms()
        clock = self.read_clock()
        self._await_refill(side, step_ms)
        if stock:
            cpu.end(side.steps_per_block + stock, step_ms)
        return step_ms, clock

    def _other(self, side: BuiltSide) -> BuiltSide:
        return self.both.reference if side is self.both.optimized else self.both.optimized

    def _begin_turn(self, side: BuiltSide) -> None:
        if self.stop_idle:
            stop_workers(self._other(side).workers)
            resume_workers(side.workers)

    def end_turns(self) -> None:
        """Lets the workers of both sides go on. Workers that began since the first pair belong to no known side."""
        if list_descendants() - self.workers:
            for cpu in self.cpu:
                cpu.lose(BEGAN)
        for side in (self.both.reference, self.both.optimized):
            resume_workers(side.workers)

    def _await_refill(self, side: BuiltSide, step_ms: float) -> None:
        if not (self.stop_idle and side.workers):
            side.await_refill(step_ms, self.sleep)

    def _keep(self, pair: Pair, throttled_by: set[str]) -> None:
        self.throttled_by |= throttled_by
        if throttled_by and self.discarded < MAX_DISCARDED_PER_KEPT * len(self.pairs) + FREE_DISCARDS:
            self.discarded += 1
        else:
            self.pairs.append(pair)

    def result(self) -> TimedBuild:
        return TimedBuild(
            pairs=tuple(self.pairs),
            discarded=self.discarded,
            throttled_by=tuple(sorted(self.throttled_by)),
            reference_steps_per_block=self.both.reference.steps_per_block,
            optimized_steps_per_block=self.both.optimized.steps_per_block,
        )


def run_until_refilled(
    side: BuiltSide, inputs: Sequence[Any], time_ms: TimeMs, wait: Callable[[float], None] = sleep
) -> None:
    """Runs a block of the side as a pair does: until its loaders have refilled its stock."""
    side.await_refill(side.timed_block(inputs, time_ms), wait)


TRIES = 8
TimeMs = Callable[[Callable[[], None]], float]


@dataclass
class BothSides:
    """The reference and the optimized side, built one after the other and closed together."""

    reference: BuiltSide
    optimized: BuiltSide
    reference_built_first: bool
    build_s: float
    _reference_fingerprint: str
    reference_alone: tuple[int, float] | None = None  # steps of a block, and ms of a step, before the other was built

    def check_apart(self) -> None:
        """Raises SideError when the optimization changed the model that the reference runs."""
        if fingerprint(self.reference.side.model) != self._reference_fingerprint:
            problem = ValueError("it changed the reference's model: copy the model before changing it")
            raise SideError(self.optimized.name, "being built or run", problem)

    def close(self) -> None:
        """Closes and frees the side that was built last before the other one.

        Allocators hand out first the memory that was freed last. So the side that is built first always gets the same
        memory, and building in the other order swaps the memory of both sides: the choice of pinned buffers made up to
        19 % of a pipeline's time.
        """
        names = ("reference", "optimized")
        with ExitStack() as stack:  # it closes in reverse order, and the second side where closing the first fails
            stack.callback(release, self.reference.device)
            for name in names if self.reference_built_first else names[::-1]:
                stack.callback(lambda name: self.__dict__.pop(name).close(), name)


def build_both(
    case: Case,
    context: Context,
    inputs: Inputs,
    reference_first: bool,
    time_ms: TimeMs | None = None,
) -> BothSides:
    """Builds both sides in the given order, which decides their placement in memory, and notes the workers of each.
    With `time_ms`, the side that is built first is timed alone.

    Raises SideError when a side cannot be built, writes to its inputs or changes the other's model; a side that was
    built by then is closed.
    """
    started = perf_counter()

    names = (case.reference_name, case.optimization.name)
    built, before, alone, known = {}, "", None, list_descendants()
    with ExitStack() as undo:
        for name in names if reference_first else names[::-1]:
            built[name] = build_side(name, case.builder(name), context, inputs.timed[0], inputs.restore)
            built[name].workers = list_descendants() - known
            known |= built[name].workers
            undo.callback(built[name].close)
            if time_ms is not None and len(built) == 1 and can_repeat(built[name]):
                alone = time_alone(built[name], inputs.fresh, time_ms)
            check_untouched(inputs, name)
            if name == case.reference_name:
                before = fingerprint(built[name].side.model)
        reference, optimized = (built[name] for name in names)
        both = BothSides(reference, optimized, reference_first, perf_counter() - started, before, alone)
        both.check_apart()
        undo.pop_all()
    return both


def can_repeat(side: BuiltSide) -> bool:
    """True for a side whose steps on one input are all alike: they write to no input, and do not read ahead."""
    return not (side.restore or side.side.works_ahead or side.side.stock_steps)


def time_alone(side: BuiltSide, inputs: Sequence[Any], time_ms: TimeMs) -> tuple[int, float]:
    """Finds the steps that fill a block over these inputs; returns them with the milliseconds of a step of such a
    block, the shorter one of two."""
    steps, step_ms = 1, _time_on(side, inputs, time_ms, 1)
    while step_ms * steps < BLOCK_MS[side.device.type] and steps < MAX_STEPS_PER_BLOCK:
        steps *= 2
        step_ms = _time_on(side, inputs, time_ms, steps)
    return steps, min(step_ms, _time_on(side, inputs, time_ms, steps))


def _time_on(side: BuiltSide, inputs: Sequence[Any], time_ms: TimeMs, steps: int) -> float:
    """Measures the milliseconds of a step in a block of `steps` steps over other inputs than the timed ones."""
    next_input, side.next_input = side.next_input, 0
    step_ms = side.timed_block(inputs, time_ms, steps)
    side.next_input = next_input
    return step_ms


def find_slowdown(
    reference: BuiltSide,
    run_other: Callable[[], object],
    inputs: Sequence[Any],
    time_ms: TimeMs,
    alone: tuple[int, float],
    accepted: float = SLOWED,
) -> float:
    """Measures the reference's time of a step, each time after `run_other`, over its time `alone`: the least of up to
    TRIES tries, which end at a ratio no larger than `accepted`."""
    steps, alone_ms = alone
    tries: list[float] = []
    while len(tries) < TRIES and min(tries, default=math.inf) > accepted:
        run_other()
        tries.append(_time_on(reference, inputs, time_ms, steps) / alone_ms)
    return min(tries)


# A stopped worker cannot see that this process was killed. The watcher does, by the end of its input, and resumes them.
_WATCHER = """trap '' INT; while read -r worker; do workers="$workers $worker"; done; kill -s CONT -- $workers"""


def stop_workers(workers: Collection[int]) -> None:
    """Stops the workers, which stay alive. Call `resume_workers` before their side is used or closed.

    A worker is the id of a process or, as in kill(2), the negative id of a process group.
    """
    for worker in workers:
        _watch(os.getpid(), worker)
    _signal(workers, signal.SIGSTOP)


def resume_workers(workers: Collection[int]) -> None:
    _signal(workers, signal.SIGCONT)


def _signal(workers: Collection[int], number: signal.Signals) -> None:
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, number)


@cache
def _watch(pid: int, worker: int) -> None:
    """Names a worker to the watcher of the process `pid`, once: a worker is stopped in every pair."""
    stream = _start_watcher(pid).stdin
    assert stream is not None  # noqa: S101  # for mypy
    stream.write(f"{worker}\n".encode())
    stream.flush()


@cache
def _start_watcher(pid: int) -> subprocess.Popen[bytes]:
    """The watcher of the process `pid`: a forked child starts one of its own."""
    none = subprocess.DEVNULL
    return start_apart(["sh", "-c", _WATCHER], stdin=subprocess.PIPE, stdout=none, stderr=none)

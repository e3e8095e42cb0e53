"""Pairs of blocks, one of each side, next to each other: drift hits both, order alternates (ABBA)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import sleep
from typing import Any

from gpugate.machine.processes import list_descendants
from gpugate.measurement.both_sides import BothSides
from gpugate.measurement.cpu_counters import BEGAN, CpuCounters
from gpugate.measurement.device_timer import Timer
from gpugate.measurement.gpu_clock import POWER_CAP, ReadClock
from gpugate.measurement.idle_side import resume_workers, stop_workers
from gpugate.measurement.record import ClockReading, Pair, TimedBuild
from gpugate.measurement.sides import BuiltSide

# A throttled pair is dropped only while at least as many were kept: a run never ends with no samples.
MAX_DISCARDED_PER_KEPT = 1
FREE_DISCARDS = 4
FIRST_COOL_DOWN_S = 0.02  # as long as a block
LONGEST_COOL_DOWN_S = 0.16
LONGEST_REFILL_S = 0.5


@dataclass
class CoolDown:
    """The time for which the device idles before every block of one measurement; 0 until a clock was capped.

    A capped clock is normal, but it swings: two identical sides of a power-hungry model differed by 2 % from pair to
    pair (1425 to 1890 of 1980 MHz), where a model that stays below the limit differs by 0.05 %. After a cool-down, the
    GPU runs the blocks of both sides at its clock for short bursts.
    """

    seconds: float = 0.0

    def lengthen(self) -> bool:
        """Doubles the time; returns False where it has its full length already."""
        if self.seconds >= LONGEST_COOL_DOWN_S:
            return False
        self.seconds = max(FIRST_COOL_DOWN_S, 2 * self.seconds)
        return True


def _keep_inputs(side: BuiltSide) -> None:
    """The default of `Pairing.exchange`: the inputs stay as they are."""


@dataclass
class Pairing:
    """Takes the pairs of one build; throttled and capped pairs are discarded and counted."""

    both: BothSides
    inputs: Sequence[Any]
    timer: Timer
    read_clock: ReadClock
    reference_first: bool
    cool_down: CoolDown = field(default_factory=CoolDown)
    cpu: tuple[CpuCounters, CpuCounters] = field(default_factory=lambda: (CpuCounters(), CpuCounters()))
    exchange: Callable[[BuiltSide], None] = _keep_inputs  # of inputs' contents, after the optimized side's blocks
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
        if (between.capped or after.capped) and self.cool_down.lengthen():
            throttled_by.add(POWER_CAP)
        self._keep(pair, throttled_by)

    def _run_block(self, side: BuiltSide) -> tuple[float, ClockReading]:
        """Times a block, and reads the clock of the GPU right after it.

        The CPU time of a side with a stock is that of all its steps, untimed ones included, until the stock is full
        again: its workers then did as many steps as the side took.
        """
        self._begin_turn(side)
        if self.cool_down.seconds:
            self.sleep(self.cool_down.seconds)
        cpu, stock = self.cpu[side is self.both.optimized], side.side.stock_steps
        cpu.begin(self.workers - self._other(side).workers)
        step_ms = side.timed_block(self.inputs, self.timer.time_ms)
        if not stock:
            cpu.end(side.steps_per_block, step_ms)
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
        """Waits until the loaders of the side that has just run have refilled its stock, at the rate of that run.

        Without the wait they would use cores during the other side's block, and fill their stock at its expense.
        """
        if side.side.stock_steps and not (self.stop_idle and side.workers):
            self.sleep(min(LONGEST_REFILL_S, side.side.stock_steps * step_ms / 1e3))

    def _keep(self, pair: Pair, throttled_by: set[str]) -> None:
        self.throttled_by |= throttled_by
        if throttled_by and self.discarded < MAX_DISCARDED_PER_KEPT * len(self.pairs) + FREE_DISCARDS:
            self.discarded += 1
        else:
            self.pairs.append(pair)

    def result(self) -> TimedBuild:
        return TimedBuild(
            reference_built_first=self.both.reference_built_first,
            pairs=tuple(self.pairs),
            discarded=self.discarded,
            throttled_by=tuple(sorted(self.throttled_by)),
            reference_steps_per_block=self.both.reference.steps_per_block,
            optimized_steps_per_block=self.both.optimized.steps_per_block,
        )

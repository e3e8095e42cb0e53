"""Pairs of blocks, one of each side, next to each other: drift hits both, order alternates (ABBA)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpugate.measurement.cpu_counters import CpuCounters
from gpugate.measurement.device_timer import Timer
from gpugate.measurement.gpu_clock import POWER_CAP, ReadClock
from gpugate.measurement.instance import BothSides
from gpugate.measurement.record import Instance, Pair
from gpugate.measurement.rest import Rest
from gpugate.measurement.sides import BuiltSide

# A throttled pair is dropped only while at least as many were kept: a run never ends with no samples.
MAX_DISCARDED_PER_KEPT = 1
FREE_DISCARDS = 4


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
    rest: Rest = field(default_factory=Rest)
    cpu: tuple[CpuCounters, CpuCounters] = field(default_factory=lambda: (CpuCounters(), CpuCounters()))
    exchange: Callable[[BuiltSide], None] = _keep_inputs  # of inputs' contents, after the optimized side's blocks
    pairs: list[Pair] = field(default_factory=list)
    discarded: int = 0
    throttled_by: set[str] = field(default_factory=set)

    def settle(self) -> None:
        """Runs one pair and discards it: the first pair after a build or a pause is slow, not equally on both sides.

        Where loaders work ahead, the pair is a short one, which still uses up their stock.
        """
        for side in (self.both.reference, self.both.optimized):
            step_ms = side.timed_block(self.inputs, self.timer.time_ms, steps=side.side.stock_steps or None)
            self.rest.refill(side.side.stock_steps, step_ms)

    def take(self, count: int, go_on: Callable[[], bool]) -> None:
        """Takes pairs until this call has kept `count` of them or `go_on` returns False."""
        wanted = len(self.pairs) + count
        while len(self.pairs) < wanted and go_on():
            self._take_one()

    def _take_one(self) -> None:
        sides = (self.both.reference, self.both.optimized)
        first, second = sides if self.reference_first else sides[::-1]
        before = self.read_clock()
        first_ms = self._block_ms(first)
        between = self.read_clock()
        self.rest.refill(first.side.stock_steps, first_ms)
        second_ms = self._block_ms(second)
        after = self.read_clock()
        self.rest.refill(second.side.stock_steps, second_ms)
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
        if (between.capped or after.capped) and self.rest.lengthen():
            throttled_by.add(POWER_CAP)
        self._keep(pair, throttled_by)

    def _block_ms(self, side: BuiltSide) -> float:
        self.rest.take()
        with self.cpu[side is self.both.optimized].counting(side.steps_per_block):
            return side.timed_block(self.inputs, self.timer.time_ms)

    def _keep(self, pair: Pair, throttled_by: set[str]) -> None:
        self.throttled_by |= throttled_by
        if throttled_by and self.discarded < MAX_DISCARDED_PER_KEPT * len(self.pairs) + FREE_DISCARDS:
            self.discarded += 1
        else:
            self.pairs.append(pair)

    def instance(self) -> Instance:
        return Instance(
            reference_built_first=self.both.reference_built_first,
            pairs=tuple(self.pairs),
            discarded=self.discarded,
            throttled_by=tuple(sorted(self.throttled_by)),
            reference_steps_per_block=self.both.reference.steps_per_block,
            optimized_steps_per_block=self.both.optimized.steps_per_block,
        )

"""Warm-up of a side, by time and until its blocks show no drift: an idle GPU runs at a fifth of its clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from gpugate.measurement.settings import BLOCK_MS
from gpugate.measurement.sides import BuiltSide

STEADY_BLOCKS = 3
STEADY_SPREAD = 0.01
COMPARED_BLOCKS = 5
DRIFT_U = 2  # the largest U of two fives that shows a drift: p is 0.032, and 0.056 for a U of 3
# A block begins when the loaders' stock is used up, so every step waits at the loaders' sustained rate. A block of two
# stocks does not depend on the moment at which the next data happen to be ready.
STOCKS_PER_BLOCK = 2
# A side that works ahead ends every block by refilling its queues, with most of its threads idle: this time must be a
# small part of the block.
AHEAD_BLOCK_MS = 200.0  # on a GPU; on a CPU a step of such a side lasts as long
# With blocks shorter than a round, the work that a side does once in a round would be in few blocks, and their median
# would never show it. On a CPU, which only shows that everything runs, a round is not worth its time. Ragged inputs are
# worth one on a CPU, too: a step on a larger set takes longer, and blocks of other sets have another speedup.
LONGEST_ROUND_MS = 1500.0
PATIENCE = 3  # times the minimum, for a side that never stops drifting
MAX_STEPS_PER_BLOCK = 100_000
TUNED = 3.0  # times the later time: a single step, with its join, takes longer than one in a block


def steady(block_ms: Sequence[float]) -> bool:
    """True where the last three blocks lie within 1 % of each other, or the last five show no drift against the five
    before them.

    A Mann-Whitney test compares the two fives: noise that no warm-up removes must not prolong the warm-up.
    """
    last = block_ms[-STEADY_BLOCKS:]
    if len(last) == STEADY_BLOCKS and max(last) - min(last) <= STEADY_SPREAD * min(last):
        return True
    before, recent = block_ms[-2 * COMPARED_BLOCKS : -COMPARED_BLOCKS], block_ms[-COMPARED_BLOCKS:]
    return len(before) == COMPARED_BLOCKS and _mann_whitney_u(before, recent) > DRIFT_U


def _mann_whitney_u(before: Sequence[float], recent: Sequence[float]) -> float:
    """The smaller U of the test: the pairs in which the earlier block is longer, or those in which it is shorter.

    scipy.stats has the test, but takes a second to import: in a warm-up, whose device would idle meanwhile.
    """
    longer = sum((one > other) + 0.5 * (one == other) for one in before for other in recent)
    return min(longer, len(before) * len(recent) - longer)


def least_block_ms(side: BuiltSide) -> float:
    """Looks up the smallest time of a block of this side."""
    on_cuda = side.device.type == "cuda"
    return AHEAD_BLOCK_MS if side.side.works_ahead and on_cuda else BLOCK_MS[side.device.type]


def steps_for(step_ms: float, block_ms: float) -> int:
    """Computes the steps that fill a block of `block_ms`, at least one."""
    return max(1, min(MAX_STEPS_PER_BLOCK, math.ceil(block_ms / step_ms))) if step_ms > 0 else MAX_STEPS_PER_BLOCK


def steps_of_block(step_ms: float, block_ms: float, stock_steps: int, stocks: int, round_steps: int) -> int:
    """Computes the steps that fill `block_ms` and at least `stocks` stocks: whole rounds, or one step more.

    Together with the steps that use up the stock, the number is odd: with an even number of input sets, the last step
    of a block must not always read the same set.
    """
    steps = max(steps_for(step_ms, block_ms), stocks * stock_steps)
    steps = math.ceil(steps / round_steps) * round_steps
    return steps + (steps + stock_steps + 1) % 2


def warm_up(
    side: BuiltSide,
    inputs: Sequence[Any],
    time_ms: Callable[[Callable[[], None]], float],
    block_ms: float,
    seconds: float,
    ragged: bool = False,
) -> float:
    """Runs blocks for at least `seconds` and until they are steady; leaves `side.steps_per_block` calibrated.

    A block of `ragged` inputs reads all sets equally often, but for one. Returns the milliseconds of a step of the last
    block.
    """
    started, seen = perf_counter(), []
    worth_a_round = ragged or side.device.type == "cuda"
    of_a_round = math.lcm(side.side.round_steps, len(inputs) if ragged else 1)
    while True:
        step_ms = side.timed_block(inputs, time_ms)
        seen.append(step_ms)
        elapsed = perf_counter() - started
        warm = elapsed >= seconds and (steady(seen) or elapsed >= PATIENCE * seconds)
        stocks, round_steps = 1, 1
        if warm:
            stocks = STOCKS_PER_BLOCK
            round_steps = of_a_round if worth_a_round and of_a_round * step_ms <= LONGEST_ROUND_MS else 1
        steps = steps_of_block(step_ms, block_ms, side.side.stock_steps, stocks, round_steps)
        # Steps that write to their inputs read each set once in a block, and the last one not always the same set.
        side.steps_per_block = steps if side.restore is None else min(steps, len(inputs) - 1 - len(inputs) % 2 or 1)
        if warm:
            return step_ms


def read_each_once(
    side: BuiltSide, inputs: Sequence[Any], time_ms: Callable[[Callable[[], None]], float], seconds: float
) -> list[float]:
    """Runs a step on each input set, within `seconds`; returns their milliseconds.

    A side may compile or tune itself at the first sight of a shape, of a number or of what a mask selects. A block in
    which it does would not be the steady state that users get.
    """
    until, steps_ms = perf_counter() + seconds, list[float]()
    while len(steps_ms) < len(inputs) and perf_counter() <= until:
        steps_ms.append(side.timed_block(inputs, time_ms, steps=1))
    return steps_ms

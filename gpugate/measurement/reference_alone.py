"""The reference alone: its time of a step before the optimized side is built, and again beside that side.

A side can slow the reference by any function that both call, or by threads that never rest. No list of functions shows
that, and the reference's own time does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gpugate.measurement.settings import BLOCK_MS, SLOWED
from gpugate.measurement.sides import BuiltSide
from gpugate.measurement.warm_up import MAX_STEPS_PER_BLOCK

TRIES = 8
TimeMs = Callable[[Callable[[], None]], float]


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
) -> float:
    """Measures the reference's time of a step, each time after a block of the other side, over its time `alone`: the
    least of up to TRIES tries, which end at a ratio no larger than SLOWED."""
    steps, alone_ms = alone
    tries: list[float] = []
    while len(tries) < TRIES and min(tries, default=math.inf) > SLOWED:
        run_other()
        tries.append(_time_on(reference, inputs, time_ms, steps) / alone_ms)
    return min(tries)

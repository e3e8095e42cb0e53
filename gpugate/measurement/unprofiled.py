"""Counters that need no profiler: host time to enqueue a step, its time on cached data, and memory that a step leaves.

A leak of device memory ends a service after hours, and no timing shows it before.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import torch

from gpugate.measurement.settings import BLOCK_MS
from gpugate.measurement.sides import BuiltSide, blame, synchronize
from gpugate.measurement.warm_up import steps_for

FEWEST_ENQUEUED, MOST_ENQUEUED, ENQUEUE_MS = 5, 1000, 300.0
CACHED_BLOCKS = 3
ROUNDS, STEPS = 3, 5  # steps of a round, or as many as one block has where that is fewer
ROUND_MS = 300.0  # where STEPS steps would take longer, a round has fewer steps
LEVELS, LOOKS = 4, 3  # levels of allocated memory, each the least of LOOKS readings, with a round between two readings
LASTING = 0.5  # memory that leaks goes on to rise by at least this share of its first rises


def enqueue_ms(side: BuiltSide, inputs: Sequence[Any]) -> float:
    """Measures the median host time until `step` returns, from an idle device and without a profiler.

    The median is of 5 to 1000 steps, as many as begin within 0.3 s. Few short steps would all lie in one slow moment of
    the host.
    """
    side.flags.apply()
    times_ms: list[float] = []
    until_ns = perf_counter_ns() + ENQUEUE_MS * 1e6
    with blame(side.name, "being enqueued"):
        while len(times_ms) < FEWEST_ENQUEUED or (len(times_ms) < MOST_ENQUEUED and perf_counter_ns() < until_ns):
            synchronize(side.device)
            step = side.side.step  # reading `step` starts the work of some faults
            started = perf_counter_ns()
            step(inputs[len(times_ms) % len(inputs)])
            times_ms.append((perf_counter_ns() - started) / 1e6)
            side.side.finish()
    synchronize(side.device)
    return statistics.median(times_ms)


def measure_data_path(
    side: BuiltSide, inputs: Sequence[Any], time_ms: Callable[[Callable[[], None]], float], real_ms: float | None = None
) -> dict[str, float]:
    """Measures `cached_step_ms` and `data_path_efficiency`; empty where the side has no `cached_step`.

    At an efficiency of 1, loading and copying are hidden or cost nothing; at 0.3, seven tenths of a step wait for data.
    The cached time is the median of three blocks. `real_ms` is the real time per step; where it is None, three real
    blocks are timed.
    """
    cached = side.side.cached_step
    if cached is None:
        return {}
    if real_ms is None:
        real_ms = statistics.median(side.timed_block(inputs, time_ms) for _ in range(CACHED_BLOCKS))

    def block(steps: int) -> None:
        for _ in range(steps):
            cached()
        side.side.finish()

    side.flags.apply()
    with blame(side.name, "running steps on cached data"):
        block(1)  # untimed: it may set up buffers
        first_ms = time_ms(partial(block, 1))
        # Cached data has no loader and no stock: a block may be shorter than a real one.
        steps = min(side.steps_per_block, steps_for(first_ms, BLOCK_MS[side.device.type]))
        seen_ms = [first_ms] if steps == 1 else []  # a block of one step is timed already
        seen_ms += [time_ms(partial(block, steps)) / steps for _ in range(CACHED_BLOCKS - len(seen_ms))]
        cached_ms = statistics.median(seen_ms)
    return {"cached_step_ms": cached_ms, "data_path_efficiency": cached_ms / real_ms}


def grown_bytes(side: BuiltSide, inputs: Sequence[Any], step_ms: float) -> float:  # cuda only
    """Measures the bytes per step by which a warmed-up side's allocated device memory grows; 0 where it does not grow.

    The number is exact where no other memory comes and goes. Memory that is allocated or freed once is no leak; nor is
    memory that the garbage collector or a library's next call frees: CV-CUDA keeps a varying part of the memory that
    its last operators used. Where none of three rounds leaves more allocated, the result is 0. Else a level is the
    least of three readings, with a collection before each. The level must rise three times, and then over as many
    rounds again by at least half as much: the memory of a library can rise by chance, but does not go on.
    """
    side.flags.apply()
    steps = min(STEPS, side.steps_per_block, steps_for(step_ms, ROUND_MS))
    with blame(side.name, "being watched for growing memory"):
        readings = _readings(side, inputs, steps, ROUNDS, lambda: 0)
        if all(after <= before for before, after in pairwise(readings)):
            return 0.0
        rises = _measure_rises(side, inputs, steps)
        if min(rises) <= 0:
            return 0.0
        later = _measure_rises(side, inputs, steps)
    if sum(later) < LASTING * len(later) * statistics.median(rises):
        return 0.0
    return statistics.median([*rises, *later]) / (LOOKS * steps)


def _measure_rises(side: BuiltSide, inputs: Sequence[Any], steps: int) -> list[int]:
    """Measures LEVELS levels, and returns the bytes by which each one exceeds the one before it."""
    readings = _readings(side, inputs, steps, LEVELS * LOOKS - 1, gc.collect)
    levels = [min(readings[first : first + LOOKS]) for first in range(0, len(readings), LOOKS)]
    return [after - before for before, after in pairwise(levels)]


def _readings(side: BuiltSide, inputs: Sequence[Any], steps: int, rounds: int, collect: Callable[[], int]) -> list[int]:
    """Reads the allocated bytes before `rounds` rounds of `steps` steps each, and after every round."""
    collect()
    readings = [_allocated_bytes(side.device)]
    for _ in range(rounds):
        side.run_steps(inputs, steps)
        collect()
        readings.append(_allocated_bytes(side.device))
    return readings


def _allocated_bytes(device: torch.device) -> int:
    """Allocates once before it reads: only an allocation frees memory that another stream was still using."""
    synchronize(device)
    torch.empty(1, device=device)
    return torch.cuda.memory_allocated(device)

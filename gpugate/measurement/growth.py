"""Device memory that a step leaves allocated: a leak ends a service after hours, and no timing shows it before."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from gpugate.measurement.sides import BuiltSide, blame, synchronize
from gpugate.measurement.warm_up import steps_for

ROUNDS, STEPS = 3, 5  # steps of a round, or as many as one block has where that is fewer
ROUND_MS = 300.0  # where STEPS steps would take longer, a round has fewer steps
LEVELS, LOOKS = 4, 3  # levels of allocated memory, each the least of LOOKS readings, with a round between two readings
LASTING = 0.5  # memory that leaks goes on to rise by at least this share of its first rises


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
    if sum(later) < LASTING * len(later) * median(rises):
        return 0.0
    return median([*rises, *later]) / (LOOKS * steps)


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

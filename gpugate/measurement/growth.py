"""Device memory that a step leaves allocated: a leak ends a service after hours, and no time shows it before."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from gpugate.measurement.sides import BuiltSide, blamed_on, synchronize
from gpugate.measurement.warm_up import steps_for

ROUNDS, STEPS = 3, 5  # steps of a round, or as many as one block has where that is fewer
ROUND_MS = 300.0  # a round of steps that would take longer has fewer
LEVELS, LOOKS = 4, 3  # of what is allocated at least, each the least of so many looks, with a round between two of them


def grown_bytes(side: BuiltSide, inputs: Sequence[Any], step_ms: float = 0.0) -> float:  # cuda only
    """Bytes per step by which a warmed-up side's allocated device memory grows; 0 when it does not.

    Exactly so many, where nothing else comes and goes. What is allocated or freed once is no leak, nor what the garbage
    collector gives back, or a library at its next call: CV-CUDA holds what its last operators needed, now more of it,
    now less. So where any of three rounds left more allocated, the least of every three looks counts, with a collection
    before each, and it must rise every time.
    """
    side.flags.apply()
    steps = min(STEPS, side.steps_per_block, steps_for(step_ms, ROUND_MS))
    with blamed_on(side.name, "being watched for growing memory"):
        readings = _readings(side, inputs, steps, ROUNDS, lambda: 0)
        if all(after <= before for before, after in pairwise(readings)):
            return 0.0
        readings = _readings(side, inputs, steps, LEVELS * LOOKS - 1, gc.collect)
    levels = [min(readings[first : first + LOOKS]) for first in range(0, len(readings), LOOKS)]
    return max(0.0, min(after - before for before, after in pairwise(levels)) / (LOOKS * steps))


def _readings(side: BuiltSide, inputs: Sequence[Any], steps: int, rounds: int, collect: Callable[[], int]) -> list[int]:
    """Allocated bytes before so many rounds of `steps` steps, and after each of them."""
    collect()
    readings = [_allocated_bytes(side.device)]
    for _ in range(rounds):
        side.run_steps(inputs, steps)
        collect()
        readings.append(_allocated_bytes(side.device))
    return readings


def _allocated_bytes(device: torch.device) -> int:
    """Memory that another stream was still using is only given back by a later allocation."""
    synchronize(device)
    torch.empty(1, device=device)
    return torch.cuda.memory_allocated(device)

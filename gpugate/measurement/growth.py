"""Device memory that a step leaves allocated: a leak ends a service after hours, and no time shows it before."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from gpugate.measurement.sides import BuiltSide, blamed_on, synchronize
from gpugate.measurement.warm_up import steps_for

ROUNDS, STEPS = 3, 5  # steps of a round, or as many as one block has where that is fewer
ROUND_MS = 300.0  # a round of steps that would take longer has fewer


def grown_bytes(side: BuiltSide, inputs: Sequence[Any], step_ms: float = 0.0) -> float:  # cuda only
    """Bytes per step by which a warmed-up side's allocated device memory grows, exactly; 0 when it does not.

    The median of three rounds counts: what is allocated or freed once is no leak. Nor is what the garbage collector
    gives back, or a library at its next call, as CV-CUDA does, whose last step then looks now smaller, now larger:
    growth is looked at again with a collection after every round, and the least of three rounds counts.
    """
    side.flags.apply()
    steps = min(STEPS, side.steps_per_block, steps_for(step_ms, ROUND_MS))
    with blamed_on(side.name, "being watched for growing memory"):
        suspected = statistics.median(_growths(side, inputs, steps, lambda: 0))
        found = min(_growths(side, inputs, steps, gc.collect)) if suspected > 0 else 0.0
    return max(0.0, found / steps)


def _growths(side: BuiltSide, inputs: Sequence[Any], steps: int, collect: Callable[[], int]) -> list[int]:
    """Bytes by which each round left more allocated than the one before."""
    collect()
    readings = [_allocated_bytes(side.device)]
    for _ in range(ROUNDS):
        side.run_steps(inputs, steps)
        collect()
        readings.append(_allocated_bytes(side.device))
    return [after - before for before, after in pairwise(readings)]


def _allocated_bytes(device: torch.device) -> int:
    """Memory that another stream was still using is only given back by a later allocation."""
    synchronize(device)
    torch.empty(1, device=device)
    return torch.cuda.memory_allocated(device)

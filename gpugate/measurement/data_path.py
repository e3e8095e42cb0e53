"""Time of a pipeline's step on cached data, and its share of the real time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpugate.measurement.settings import BLOCK_MS
from gpugate.measurement.sides import BuiltSide, blame
from gpugate.measurement.warm_up import steps_for

BLOCKS = 3


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
        real_ms = statistics.median(side.timed_block(inputs, time_ms) for _ in range(BLOCKS))

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
        seen_ms += [time_ms(partial(block, steps)) / steps for _ in range(BLOCKS - len(seen_ms))]
        cached_ms = statistics.median(seen_ms)
    return {"cached_step_ms": cached_ms, "data_path_efficiency": cached_ms / real_ms}

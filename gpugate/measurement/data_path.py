"""How much of a pipeline's step is left when its data is already where it is needed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from gpugate.measurement.sides import BuiltSide, blamed_on

BLOCKS = 3


def data_path_efficiency(
    side: BuiltSide, inputs: Sequence[Any], time_ms: Callable[[Callable[[], None]], float]
) -> float | None:
    """Time per step on cached data over real time per step, medians of three blocks in turn; None without such a step.

    1 says that loading and copying are hidden, or cost nothing; 0.3 that seven tenths of a step wait for data.
    """
    cached = side.side.cached_step
    if cached is None:
        return None

    def cached_block() -> None:
        for _ in range(side.steps_per_block):
            cached()
        side.side.finish()

    real_ms, cached_ms = [], []
    for _ in range(BLOCKS):
        real_ms.append(side.timed_block(inputs, time_ms))
        with blamed_on(side.name, "running steps on cached data"):
            cached_ms.append(time_ms(cached_block) / side.steps_per_block)
    return statistics.median(cached_ms) / statistics.median(real_ms)

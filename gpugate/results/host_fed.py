"""The rule by which the host feeds a case, so that no other case may run on its host. Pure."""

from __future__ import annotations

from collections.abc import Iterable

GPU_BOUND = 0.95  # a pipeline whose GPU is active for so much of the time, on both sides, hardly waits for its host


def is_host_fed(on_host_clock: bool, active_fractions: Iterable[float | None]) -> bool:
    """True for a case that is timed by the host's clock, unless the GPU is known to bound the times of both sides.

    Everything on a CPU and each pipeline is `on_host_clock`. `active_fractions` are the counters of that name of the
    two sides, None where one was not counted.
    """
    return on_host_clock and not all((active or 0.0) >= GPU_BOUND for active in active_fractions)

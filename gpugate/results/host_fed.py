"""The rule by which the host feeds a case, so that no other case may run on its host. Pure."""

from __future__ import annotations

from collections.abc import Iterable

GPU_BOUND = (
    0.95  # a pipeline whose GPU runs kernels for this share of the time, on both sides, hardly waits for its host
)


def is_host_fed(on_host_clock: bool, kernel_fractions: Iterable[float | None]) -> bool:
    """True for a case that is timed by the host's clock, unless the GPU is known to bound the times of both sides.

    Everything on a CPU and each pipeline is `on_host_clock`. `kernel_fractions` are the counters of that name of the
    two sides, None where one was not counted. Copies do not count: those from the host share its memory and its bus
    with other cases.
    """
    return on_host_clock and not all((share or 0.0) >= GPU_BOUND for share in kernel_fractions)

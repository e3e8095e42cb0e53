"""The bottleneck of one side in words, with the numbers behind it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpugate import units

MOST = 0.85  # of the time: the device, or the host, does little else
HALF = 0.5
FED = 0.9  # of a step's real time that it takes on cached data: what is missing is the data path's


def bottleneck(counters: Mapping[str, float], step_ms: float) -> str | None:
    """Data-bound, compute-bound, copy-bound, sync-bound, launch-bound or host-bound; None without counters.

    Asked in this order: copies that run nearly all the time, and longer than kernels, bound a step; one that is much
    shorter on cached data waits for data; then kernels that run nearly all the time; then copies that run for half of
    it and longer than kernels; then waiting calls while the device is idle; then a host that needs most of a step to
    enqueue it. `step_ms` is the time of one step without the profiler.
    """
    if "kernel_fraction" not in counters:
        return None
    kernels, copies = counters["kernel_fraction"], counters.get("copy_fraction", 0.0)
    efficiency, enqueue_ms = counters.get("data_path_efficiency"), counters.get("enqueue_ms", 0.0)
    waits, active = counters.get("synchronizing_calls", 0.0), counters.get("active_fraction", 0.0)
    copy_bound = f"copy-bound: copies run {units.percent(copies)} of the time, kernels {units.percent(kernels)}"
    if copies >= MOST and copies > kernels:
        return copy_bound
    if efficiency is not None and efficiency < FED:
        return f"data-bound: on cached data a step takes {units.percent(efficiency)} of its time"
    if kernels >= MOST:
        return f"compute-bound: kernels run {units.percent(kernels)} of the time"
    if copies >= HALF and copies > kernels:
        return copy_bound
    idle = f"the GPU is active {units.percent(active)} of the time"
    if waits >= 1:
        calls = "call" if waits == 1 else "calls"
        return f"sync-bound: {waits:g} waiting {calls} per step, {idle}"
    if enqueue_ms >= HALF * step_ms:
        return (
            f"launch-bound: enqueueing takes {units.milliseconds(enqueue_ms)} of {units.milliseconds(step_ms)}, {idle}"
        )
    return f"host-bound: {idle}"

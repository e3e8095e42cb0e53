"""The bottleneck of one side by its counters: kernels, copies, the data path, or the host."""

from __future__ import annotations

from gpugate import units
from gpugate.measurement.record import Counters

BUSY = 0.85  # of the time: the device, or the host, does little else
HALF = 0.5
FED = 0.9  # of a step's real time that it takes on cached data: what is missing is the data path's


def bottleneck(counters: Counters, step_ms: float) -> str | None:
    """The bottleneck of one side, such as `kernel-bound: kernels run 92 % of the time`; None without counters.

    The kinds are tried in this order: copies that run nearly all the time, and longer than kernels; a step that is much
    shorter on cached data; kernels that run nearly all the time; copies that run for half of it and longer than
    kernels; waiting calls while the device is idle; a host that needs most of a step to enqueue it. `step_ms` is the
    time of one step without the profiler.
    """
    if "kernel_fraction" not in counters:
        return None
    kernels, copies = counters["kernel_fraction"], counters.get("copy_fraction", 0.0)
    efficiency, enqueue_ms = counters.get("data_path_efficiency", 1.0), counters.get("enqueue_ms", 0.0)
    waits, active = counters.get("synchronizing_calls", 0.0), counters.get("active_fraction", 0.0)
    copy_bound = f"copy-bound: copies run {units.percent(copies)} of the time, kernels {units.percent(kernels)}"
    if copies >= BUSY and copies > kernels:
        return copy_bound
    if efficiency < FED:
        return f"data-bound: on cached data a step takes {units.percent(efficiency)} of its time"
    if kernels >= BUSY:
        return f"kernel-bound: kernels run {units.percent(kernels)} of the time"
    if copies >= HALF and copies > kernels:
        return copy_bound
    idle = f"the GPU is active {units.percent(active)} of the time"
    if waits >= 1:
        return f"sync-bound: {waits:g} waiting {'call' if waits == 1 else 'calls'} per step, {idle}"
    if enqueue_ms >= HALF * step_ms:
        times = units.milliseconds(enqueue_ms), units.milliseconds(step_ms)
        return f"launch-bound: enqueueing to an idle GPU takes {times[0]}, a step {times[1]}, {idle}"
    return f"host-bound: {idle}"

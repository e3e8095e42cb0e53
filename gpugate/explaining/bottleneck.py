"""The bottleneck of one side: its kind, and the figures behind it in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpugate import units

MOST = 0.85  # of the time: the device, or the host, does little else
HALF = 0.5
FED = 0.9  # of a step's real time that it takes on cached data: what is missing is the data path's


Kind = Literal["data-bound", "kernel-bound", "copy-bound", "sync-bound", "launch-bound", "host-bound"]


@dataclass(frozen=True)
class Bottleneck:
    """`figures` is a sentence without its end, such as `kernels run 92 % of the time`."""

    kind: Kind
    figures: str


def bottleneck(counters: Mapping[str, float], step_ms: float) -> Bottleneck | None:
    """The bottleneck by counters; None without them.

    The kinds are tried in this order: copies that run nearly all the time, and longer than kernels; a step that is much
    shorter on cached data; kernels that run nearly all the time; copies that run for half of it and longer than
    kernels; waiting calls while the device is idle; a host that needs most of a step to enqueue it. `step_ms` is the
    time of one step without the profiler.
    """
    if "kernel_fraction" not in counters:
        return None
    kernels, copies = counters["kernel_fraction"], counters.get("copy_fraction", 0.0)
    efficiency, enqueue_ms = counters.get("data_path_efficiency"), counters.get("enqueue_ms", 0.0)
    waits, active = counters.get("synchronizing_calls", 0.0), counters.get("active_fraction", 0.0)
    copy_bound = Bottleneck(
        "copy-bound", f"copies run {units.percent(copies)} of the time, kernels {units.percent(kernels)}"
    )
    if copies >= MOST and copies > kernels:
        return copy_bound
    if efficiency is not None and efficiency < FED:
        return Bottleneck("data-bound", f"on cached data a step takes {units.percent(efficiency)} of its time")
    if kernels >= MOST:
        return Bottleneck("kernel-bound", f"kernels run {units.percent(kernels)} of the time")
    if copies >= HALF and copies > kernels:
        return copy_bound
    idle = f"the GPU is active {units.percent(active)} of the time"
    if waits >= 1:
        calls = "call" if waits == 1 else "calls"
        return Bottleneck("sync-bound", f"{waits:g} waiting {calls} per step, {idle}")
    if enqueue_ms >= HALF * step_ms:
        enqueueing = (
            f"enqueueing to an idle GPU takes {units.milliseconds(enqueue_ms)}, a step {units.milliseconds(step_ms)}"
        )
        return Bottleneck("launch-bound", f"{enqueueing}, {idle}")
    return Bottleneck("host-bound", idle)

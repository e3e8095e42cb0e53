"""The counters of an average step from a report, with the names and definitions of a counting pass. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpugate.profiling.device_activity import Copies, Kernel, Stream
from gpugate.profiling.host_calls import Call, Wait
from gpugate.profiling.idle_gaps import Active

COPIED = {
    "host to device": "host_to_device",
    "device to host": "device_to_host",
    "device to device": "device_to_device",
}
# What is known of a graph that was recorded whole. A counter that would be too small is left out.
KNOWN_OF_WHOLE_GRAPHS = ("kernel_launches", "graph_launches", "synchronizing_calls", "api_ms", "active_fraction")


def totals_of_calls(calls: Sequence[Call], waits: Sequence[Wait]) -> dict[str, float]:
    return {
        "kernel_launches": sum(call.count for call in calls if call.launch),
        "graph_launches": sum(call.count for call in calls if call.graph_launch),
        "synchronizing_calls": sum(wait.count for wait in waits if wait.of_steps),
        "api_ms": sum(call.ms for call in calls),
    }


def totals_of_activity(
    kernels: Sequence[Kernel], copies: Sequence[Copies], streams: Sequence[Stream]
) -> dict[str, float]:
    return {
        "kernels": sum(kernel.count for kernel in kernels),
        "framework_kernels": sum(kernel.count for kernel in kernels if kernel.framework),
        "tensor_core_kernels": sum(kernel.count for kernel in kernels if kernel.tensor_cores),
        "memsets": sum(stream.memsets for stream in streams),
        "pageable_copies": sum(copy.count for copy in copies if "pageable" in (copy.source, copy.target)),
        **{f"{name}_copies": sum(c.count for c in copies if c.direction == way) for way, name in COPIED.items()},
        **{f"{name}_bytes": sum(c.bytes for c in copies if c.direction == way) for way, name in COPIED.items()},
    }


def fractions(active: Active) -> dict[str, float]:
    return {
        "active_fraction": _share(active.any_ms, active.window_ms),
        "kernel_fraction": _share(active.kernel_ms, active.window_ms),
        "copy_fraction": _share(active.copy_ms, active.window_ms),
        "overlap_fraction": _share(active.overlap_ms, active.copy_ms),
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0

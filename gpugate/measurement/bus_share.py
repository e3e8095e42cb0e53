"""Achieved PCIe bandwidth of a side as a share of the measured pinned-copy rate. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpugate.measurement.record import Counters, Measurement

YARDSTICK = "pinned_copy_gb_per_s"


def with_bus_share(found: Measurement, yardsticks: Mapping[str, float]) -> Measurement:
    """Adds the counter `bus_share` to each side that was counted.

    `bus_share` is the bytes of a step in the direction that carries more, over the step's median time without the
    profiler, over the rate of a page-locked copy among `yardsticks`. Without that rate or without pairs, nothing is
    added.
    """
    gb_per_s = yardsticks.get(YARDSTICK)
    if not gb_per_s or not found.pairs:
        return found
    return replace(
        found,
        reference_counters=_add_share(found.reference_counters, [one.reference_ms for one in found.pairs], gb_per_s),
        optimized_counters=_add_share(found.optimized_counters, [one.optimized_ms for one in found.pairs], gb_per_s),
    )


def _add_share(counters: Counters, steps_ms: Sequence[float], gb_per_s: float) -> Counters:
    if not counters:
        return counters
    moved = max(counters.get("host_to_device_bytes", 0.0), counters.get("device_to_host_bytes", 0.0))
    return {**counters, "bus_share": moved / statistics.median(steps_ms) / 1e6 / gb_per_s}

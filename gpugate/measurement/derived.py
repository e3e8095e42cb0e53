"""Numbers that follow from a measurement and facts of its session: bus share, whole run, ceilings. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpugate.measurement.record import Counters, Measurement, SideCost, Yardstick
from gpugate.workload import Size

YARDSTICK = "pinned_copy_gb_per_s"
# The fastest matmul of a device, by the precision that an optimization computes in. Another precision, such as float8,
# may be faster than every yardstick: nothing bounds its FLOPs.
ON_CUDA = dict.fromkeys(("float32", "tf32", "float16", "bfloat16"), "matmul_bf16_tflops")
ON_CPU = {"float32": "matmul_fp32_tflops", "bfloat16": "matmul_bf16_cpu_tflops"}
BANDWIDTH = {"cuda": "device_copy_gb_per_s", "cpu": "memcpy_gb_per_s"}


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


def with_ceilings(
    found: Measurement, dtype: str, device_kind: str, cache_bytes: int, yardsticks: Sequence[Yardstick]
) -> Measurement:
    """Adds the largest value that each bounding yardstick had in any probe of this session.

    `cache_bytes` is the part of a step's bytes that a cache may deliver instead of memory.
    """
    names = {(ON_CUDA if device_kind == "cuda" else ON_CPU).get(dtype), BANDWIDTH[device_kind]}
    ceilings: Mapping[str, float] = {
        name: max(probe.values[name] for probe in yardsticks if name in probe.values)
        for name in sorted(name for name in names if name is not None)
        if any(name in probe.values for probe in yardsticks)
    }
    return replace(found, ceilings={**ceilings, "cache_bytes": float(cache_bytes)})


class WholeRun(NamedTuple):
    """Seconds from start to end of one run on either side."""

    reference_s: float
    optimized_s: float

    @property
    def speedup(self) -> float:
        return self.reference_s / self.optimized_s


def whole_run(size: Size, measurement: Measurement) -> WholeRun | None:
    """Computes the whole run of both sides; None where a run has no end, and where nothing was timed.

    A whole run is start-up, which includes a first step, and then every other item at the median rate. Both start-ups
    are those of the first timed build. Both sides were built before it, the optimization for a proof or once untimed,
    the baseline for its outputs: caches of the process and the disk are warm, and no start-up imports packages.
    """
    items, pairs = size.whole_run_items, measurement.pairs
    if items is None or not pairs:
        return None
    steps = items / size.items - 1

    def seconds(cost: SideCost, times_ms: Sequence[float]) -> float:
        return cost.compile_s + steps * statistics.median(times_ms) / 1e3

    return WholeRun(
        seconds(measurement.reference_cost, [pair.reference_ms for pair in pairs]),
        seconds(measurement.optimized_cost, [pair.optimized_ms for pair in pairs]),
    )


def with_whole_run(found: Measurement, size: Size) -> Measurement:
    """Adds the counter `whole_run_speedup` to the optimized side, where it was counted and its run has an end."""
    whole = whole_run(size, found)
    if whole is None or found.counters_missing is not None or not found.optimized_counters:
        return found
    return replace(found, optimized_counters={**found.optimized_counters, "whole_run_speedup": whole.speedup})


def with_ceiling_shares(found: Measurement, size: Size) -> Measurement:
    """Adds `copy_share` and `matmul_share` to the optimized side, where it was counted on a GPU and timed.

    They are the bytes and the FLOPs that a step needs by `size`, over its median time, over the ceiling of the machine.
    A cache may deliver bytes, so that the first one may be above 1. A precision without a ceiling gets no second one.
    """
    copy, matmul = found.ceilings.get(BANDWIDTH["cuda"]), found.ceilings.get(ON_CUDA["bfloat16"])
    if copy is None or not found.pairs or not found.optimized_counters:
        return found
    step_ms = statistics.median(pair.optimized_ms for pair in found.pairs)
    shares = {"copy_share": size.bytes / step_ms / 1e6 / copy}
    if matmul is not None:
        shares["matmul_share"] = size.flops / step_ms / 1e9 / matmul
    return replace(found, optimized_counters={**found.optimized_counters, **shares})

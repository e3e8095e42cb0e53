"""Numbers that follow from a measurement and facts of its session: shares, rates, ceilings, the whole run. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpugate.measurement.record import Counters, Measurement, SideCost, Yardstick
from gpugate.workload import Size

YARDSTICK, LAUNCH_LATENCY = "pinned_copy_gb_per_s", "launch_latency_us"
# The fastest matmul of a device, by the precision that an optimization computes in. Another precision, such as float8,
# may be faster than every yardstick: nothing bounds its FLOPs.
ON_CUDA = dict.fromkeys(("float32", "tf32", "float16", "bfloat16"), "matmul_bf16_tflops")
ON_CPU = {"float32": "matmul_fp32_tflops", "bfloat16": "matmul_bf16_cpu_tflops"}
BANDWIDTH = {"cuda": "device_copy_gb_per_s", "cpu": "memcpy_gb_per_s"}


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


def list_rates(measurement: Measurement, size: Size, step_ms: float) -> Iterator[tuple[str, float]]:
    """Yields every yardstick that bounds a step, with the rate of the step's work in its unit."""
    uncached = max(0.0, size.bytes - measurement.ceilings.get("cache_bytes", 0.0))  # these cross the memory
    for name in measurement.ceilings:
        if name.endswith("_tflops"):
            yield name, size.flops / step_ms / 1e9
        elif name.endswith("_gb_per_s"):
            yield name, uncached / step_ms / 1e6


def launch_slowdown(probes: Sequence[Yardstick], recorded: Mapping[str, float]) -> float | None:
    """The median launch latency of the probes over the recorded one; of two, the lower one counts."""
    latencies = [probe.values[LAUNCH_LATENCY] for probe in probes if LAUNCH_LATENCY in probe.values]
    then = recorded.get(LAUNCH_LATENCY)
    return statistics.median_low(latencies) / then if latencies and then else None


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


def with_derived(found: Measurement, size: Size, yardsticks: Mapping[str, float]) -> Measurement:
    """Adds counters that follow from the median times of a step; nothing is added without pairs.

    `bus_share`, of each side that was counted, is the bytes of a step in the direction that carries more, over its
    time, over the rate of a page-locked copy among `yardsticks`. The others are of the optimized side alone.
    `whole_run_speedup` needs a run with an end. `copy_share` and `matmul_share` are the bytes and the FLOPs that a
    step needs by `size`, over its time, over the ceiling of a GPU. A cache may deliver bytes, so that the first one may
    be above 1. A precision without a ceiling gets no second one.
    """
    if not found.pairs:
        return found
    gb_per_s = yardsticks.get(YARDSTICK)

    def with_bus_share(counters: Counters, step_ms: float) -> dict[str, float]:
        if not (counters and gb_per_s):
            return {**counters}
        moved = max(counters.get("host_to_device_bytes", 0.0), counters.get("device_to_host_bytes", 0.0))
        return {**counters, "bus_share": moved / step_ms / 1e6 / gb_per_s}

    step_ms = statistics.median(pair.optimized_ms for pair in found.pairs)
    reference = with_bus_share(found.reference_counters, statistics.median(pair.reference_ms for pair in found.pairs))
    optimized = with_bus_share(found.optimized_counters, step_ms)
    whole, copy, matmul = whole_run(size, found), *map(found.ceilings.get, (BANDWIDTH["cuda"], ON_CUDA["bfloat16"]))
    if optimized and whole is not None and found.counters_missing is None:
        optimized["whole_run_speedup"] = whole.speedup
    if optimized and copy is not None:
        optimized["copy_share"] = size.bytes / step_ms / 1e6 / copy
        if matmul is not None:
            optimized["matmul_share"] = size.flops / step_ms / 1e9 / matmul
    return replace(found, reference_counters=reference, optimized_counters=optimized)

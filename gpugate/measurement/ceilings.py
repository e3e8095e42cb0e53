"""The yardsticks of this machine that bound the rate of a step's work. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpugate.measurement.record import Measurement, Yardstick

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

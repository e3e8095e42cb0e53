"""Machine states in which a time is no evidence: throttling, quotas, fallen yardsticks, lost streams, load. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from gpugate import units
from gpugate.measurement.record import Measurement, Yardstick

# A machine that lost more than this share of a ceiling is sick. Launch latency is too jumpy to say so: slow launches
# only withdraw an alarm.
SICK_SHARE: Mapping[str, float] = {
    "matmul_bf16_tflops": 0.15,
    "device_copy_gb_per_s": 0.15,
    "pinned_copy_gb_per_s": 0.3,
    "matmul_fp32_tflops": 0.5,  # the probe of a CPU that is shared and noisy; its memcpy is too jumpy to say so
}

UNSEEN_SHARE = 0.1  # of a window of a pipeline on the host clock, which CUDA events may miss

LAUNCH_LATENCY = "launch_latency_us"
SLOW_LAUNCH = 1.2  # times the recorded latency; results/h100/lessons.md has the two gates that it was chosen on

BUSY_CORES = 0.5  # taken by other processes: threads on all cores then wait for the one that has to share its core


def busy_cores(measurement: Measurement) -> float | None:
    """The cores that other processes kept busy meanwhile; None where they were too few to matter, or are not known."""
    cores = measurement.optimized_counters.get("other_cores", 0.0)
    return cores if cores >= BUSY_CORES else None


def environment_problem(
    measurement: Measurement, around: Sequence[Yardstick], expected: Mapping[str, float]
) -> str | None:
    """The reason for which the times of this measurement are no evidence about the program; None where they are.

    `around` are the probes before and after it, `expected` the same probes as recorded with the baseline or, without
    one, the session's best.
    """
    if (throttled := measurement.optimized_counters.get("throttled_periods")) is not None:
        return describe_throttling(throttled)
    discarded = sum(build.discarded for build in measurement.instances)
    if discarded > len(measurement.pairs):
        reasons = sorted({name for build in measurement.instances for name in build.throttled_by})
        return f"{discarded} pairs were throttled ({', '.join(reasons)}), more than the {len(measurement.pairs)} kept"
    if measurement.event_host_ratio is not None and measurement.event_host_ratio < 1 - UNSEEN_SHARE:
        seen = units.percent(measurement.event_host_ratio)
        return f"CUDA events saw only {seen} of the host's window: some stream is not joined by Side.finish"
    return fallen_yardstick(around, expected)


def describe_throttling(share: float) -> str:
    return f"throttled in {units.percent(share)} of the periods of a quota of CPU time"


def fallen_yardstick(probes: Sequence[Yardstick], expected: Mapping[str, float]) -> str | None:
    """The first ceiling that lies too far below the expected one in some probe, in words, or None."""
    for name, share in SICK_SHARE.items():
        lowest = min((probe.values[name] for probe in probes if name in probe.values), default=math.inf)
        if name in expected and lowest < (1 - share) * expected[name]:
            found, wanted = (units.yardstick_value(name, value) for value in (lowest, expected[name]))
            return f"the machine gave {units.yardstick_label(name)} {found} instead of {wanted}"
    return None


def launch_slowdown(probes: Sequence[Yardstick], recorded: Mapping[str, float]) -> float | None:
    """The median launch latency of the probes over the recorded one; of two, the lower one counts."""
    latencies = [probe.values[LAUNCH_LATENCY] for probe in probes if LAUNCH_LATENCY in probe.values]
    then = recorded.get(LAUNCH_LATENCY)
    return statistics.median_low(latencies) / then if latencies and then else None

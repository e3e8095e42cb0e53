"""Reasons for which a time is no evidence: the state of the machine, an impossible rate, a slowed reference, and work
that was not seen. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from gpugate import units
from gpugate.measurement.derived import list_rates
from gpugate.measurement.record import Measurement, Yardstick
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.summary import Summary
from gpugate.workload import Contract, Size

# A machine that lost more than this share of a ceiling is sick. Launch latency is too jumpy to say so: slow launches
# only withdraw an alarm.
SICK_SHARE: Mapping[str, float] = {
    "matmul_bf16_tflops": 0.15,
    "device_copy_gb_per_s": 0.15,
    "pinned_copy_gb_per_s": 0.3,
    "matmul_fp32_tflops": 0.5,  # the probe of a CPU that is shared and noisy; its memcpy is too jumpy to say so
}

# Of a window of a pipeline on the host clock, which CUDA events may miss; of a step's time, less than this share of
# operators is no work, and MOSTLY is what a step must show of its work: one step of three is a third, and a join may
# cost as much as a step.
UNSEEN_SHARE, MOSTLY = 0.1, 0.5
ABOUT_KERNELS = ("kernels", "kernel_launches", "graph_launches", "tensor_core_kernels")

# Times a ceiling, or a recorded latency: no probe is more exact. It was chosen on two gates of an H100: 11 of 13 pairs
# of probes of a slow host exceed it, and none of 28 of another host. Tested on a night of an H200: 3 of 94 pairs.
PROBE_RATIO = 1.2

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


def impossible_rate(measurement: Measurement, summary: Summary, size: Size) -> Reason | None:
    """The first side whose step is faster than PROBE_RATIO times what this machine's yardsticks allow, or None."""
    for side, step_ms in (("the optimized side", summary.optimized_ms), ("the reference", summary.reference_ms)):
        for name, rate in list_rates(measurement, size, step_ms.median):
            ceiling = measurement.ceilings.get(name)
            if ceiling and rate > PROBE_RATIO * ceiling:
                beyond: dict[str, Fact] = {"ceiling": ceiling, "times_ceiling": rate / ceiling}
                return Reason(ReasonCode.IMPOSSIBLE_RATE, {"side": side, "yardstick": name, **beyond})
    share = measurement.optimized_counters.get("bus_share", 0.0)
    return Reason(ReasonCode.IMPOSSIBLE_RATE, {"times_ceiling": share}) if share > PROBE_RATIO else None


def slowed_reference(measurement: Measurement) -> Reason | None:
    """A reference that the other side slowed, or None."""
    times = measurement.reference_slowdown or 1.0
    return Reason(ReasonCode.REFERENCE_SLOWED, {"times": times}) if measurement.has_slowed_reference else None


def vanished_work(measurement: Measurement, contract: Contract) -> Reason | None:
    """Work of the reference that was not seen of the optimized side, or None.

    A side that declares what it does is not questioned: by `Side.engaged`, or by a contract about kernels.
    """
    counted = measurement.counters_missing is None
    declared = counted and any(one.counter in ABOUT_KERNELS for one in contract.engaged)
    ours, theirs = measurement.optimized_profile, measurement.reference_profile
    if measurement.accounts_for_itself or declared or ours is None or theirs is None or not measurement.pairs:
        return None
    if counted:
        both = measurement.optimized_counters, measurement.reference_counters
        ran, reference_ran = (counters.get("kernels") for counters in both)
        return Reason(ReasonCode.WORK_NOT_SEEN) if reference_ran and ran == 0 else None
    share = ours.kernel_ms / statistics.median(pair.optimized_ms for pair in measurement.pairs)
    reference_share = theirs.kernel_ms / statistics.median(pair.reference_ms for pair in measurement.pairs)
    if share >= UNSEEN_SHARE or reference_share < MOSTLY:
        return None
    return Reason(ReasonCode.WORK_NOT_SEEN, {"share": share, "reference_share": reference_share})

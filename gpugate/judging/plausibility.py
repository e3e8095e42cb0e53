"""Times that are no result: beyond this machine, of a slowed reference, or of work that was not seen. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from gpugate.measurement.record import Measurement
from gpugate.measurement.settings import SLOWED
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.summary import Summary
from gpugate.workload import Contract, Size

MOST = 1.2  # of a ceiling: the probes of a yardstick are no more exact
FEW_OPERATORS = 0.1  # of a step's time
MOSTLY_OPERATORS = 0.5
ABOUT_KERNELS = ("kernels", "kernel_launches", "graph_launches", "tensor_core_kernels")


def impossible_rate(measurement: Measurement, summary: Summary, size: Size) -> Reason | None:
    """The first side whose step is faster than MOST of what this machine's yardsticks allow, or None."""
    for side, step_ms in (("the optimized side", summary.optimized_ms), ("the reference", summary.reference_ms)):
        for name, rate in _rates(measurement, size, step_ms.median):
            ceiling = measurement.ceilings.get(name)
            if ceiling and rate > MOST * ceiling:
                beyond: dict[str, Fact] = {"ceiling": ceiling, "times_ceiling": rate / ceiling}
                return Reason(ReasonCode.IMPOSSIBLE_RATE, {"side": side, "yardstick": name, **beyond})
    share = measurement.optimized_counters.get("bus_share", 0.0)
    return Reason(ReasonCode.IMPOSSIBLE_RATE, {"times_ceiling": share}) if share > MOST else None


def slowed_reference(measurement: Measurement) -> Reason | None:
    """A reference that takes SLOWED times as long beside the other side as before that was built, or None."""
    slowdown = measurement.reference_slowdown or 1.0
    return Reason(ReasonCode.REFERENCE_SLOWED, {"times": slowdown}) if slowdown > SLOWED else None


def _rates(measurement: Measurement, size: Size, step_ms: float) -> Iterator[tuple[str, float]]:
    """Every yardstick that bounds a step, with the rate of the step's work in its unit."""
    uncached = uncached_bytes(measurement, size)
    for name in measurement.ceilings:
        if name.endswith("_tflops"):
            yield name, size.flops / step_ms / 1e9
        elif name.endswith("_gb_per_s"):
            yield name, uncached / step_ms / 1e6


def uncached_bytes(measurement: Measurement, size: Size) -> float:
    """The bytes of a step that no cache can deliver, so that they cross the memory."""
    return max(0.0, size.bytes - measurement.ceilings.get("cache_bytes", 0.0))


def vanished_work(measurement: Measurement, contract: Contract | None) -> Reason | None:
    """Work of the reference that was not seen of the optimized side, or None.

    A side that declares what it does is not questioned: by `Side.engaged`, or by a contract about kernels.
    """
    counted = measurement.counters_missing is None
    declared = counted and contract is not None and any(one.counter in ABOUT_KERNELS for one in contract.engaged)
    ours, theirs = measurement.optimized_profile, measurement.reference_profile
    if measurement.accounts_for_itself or declared or ours is None or theirs is None or not measurement.pairs:
        return None
    if counted:
        both = measurement.optimized_counters, measurement.reference_counters
        ran, reference_ran = (counters.get("kernels") for counters in both)
        return Reason(ReasonCode.WORK_NOT_SEEN) if reference_ran and ran == 0 else None
    share = ours.kernel_ms / statistics.median(pair.optimized_ms for pair in measurement.pairs)
    reference_share = theirs.kernel_ms / statistics.median(pair.reference_ms for pair in measurement.pairs)
    if share >= FEW_OPERATORS or reference_share < MOSTLY_OPERATORS:
        return None
    return Reason(ReasonCode.WORK_NOT_SEEN, {"share": share, "reference_share": reference_share})

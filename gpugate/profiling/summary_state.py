"""A report's summary as a state that autopsies compare: the same facts as a counting pass, and its stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpugate.explaining.state import State
from gpugate.measurement.step_profile import Parts, StepProfile
from gpugate.profiling.nvtx_ranges import DOMAIN, STEP
from gpugate.profiling.summary import ProfileSummary


def state(summary: ProfileSummary) -> State:
    """Of a step of the report. Its time is the profiled one: longer than without a profiler, on either side alike."""
    steps, active = summary.steps, summary.active
    in_order = sorted(summary.ranges, key=lambda one: one.opens_ms)
    stages = [one for one in in_order if one.domain == DOMAIN and one.name != STEP]
    copies = [(f"{one.direction} ({one.source} -> {one.target})", one.count, one.ms) for one in summary.copies]
    profile = StepProfile(
        kernels=_parts(((one.name, one.count, one.ms) for one in summary.kernels), steps),
        copies=_parts(copies, steps),
        waits=_parts(((one.call, one.count, one.ms) for one in summary.waits if one.of_steps), steps),
        stages=_parts(((one.name, one.count, one.gpu_span_ms or one.host_ms) for one in stages), steps),
        kernel_ms=active.kernel_ms / steps,
        copy_ms=(active.either_ms - active.kernel_ms) / steps,
    )
    return State(summary.span_ms / steps, {**summary.counters, **_enqueued(summary)}, profile)


def _enqueued(summary: ProfileSummary) -> dict[str, float]:
    """How long the host was in a step without waiting for the device; nothing where no range is a step.

    A call that waits between two steps stands in no range of ours, and in no step's time. In a range that somebody else
    puts around the steps it is taken for one of theirs.
    """
    host_ms = next((one.host_ms for one in summary.ranges if (one.domain, one.name) == (DOMAIN, STEP)), None)
    if host_ms is None:
        return {}
    waited_ms = sum(one.ms for one in summary.waits if one.of_steps and one.nvtx_range)
    return {"enqueue_ms": max(0.0, host_ms - waited_ms) / summary.steps}


def _parts(found: Iterable[tuple[str, float, float]], steps: int) -> Parts:
    """Per step, by name; what has one name is one part."""
    together: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, count, ms in found:
        together[name][0] += count / steps
        together[name][1] += ms / steps
    return {name: (count, ms) for name, (count, ms) in together.items()}

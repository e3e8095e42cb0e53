"""The counting pass, under the profiler: its counts are exact and free of noise, and nothing is timed in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from gpugate.errors import SideError
from gpugate.machine.torch_profiler import detach, profiled_events, run_profiler
from gpugate.measurement import trace
from gpugate.measurement.cold_inputs import HOT_SETS
from gpugate.measurement.device_timer import Timer
from gpugate.measurement.sides import BuiltSide, blame, synchronize
from gpugate.measurement.trace import FILLING, JOIN, WINDOW, Activity, read_activity
from gpugate.measurement.unprofiled import enqueue_ms, grown_bytes, measure_data_path

FLUSH_STEPS = 2  # at most: the profiler's start-up and work still in flight end in these steps, outside the window
MOST_COUNTED, MOST_AHEAD, COUNTED_MS = 4, 64, 500.0
NO_KERNEL = (
    "no kernel, so none can be counted: end every other profiler of this GPU, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)


def steps_worth_counting(sides: Sequence[BuiltSide], steps_ms: Sequence[float | None]) -> list[int]:
    """Chooses the number of counted steps of each side: one, by the slower side, for all that do not work ahead.

    Counts repeat from step to step, so few steps suffice. A side that works ahead refills its queues at the end, which
    would dominate few steps: of such a side up to 64 steps are counted, a power of two, so that a slightly slower night
    counts the same number of steps.
    """
    shared = fit_steps(max((ms for ms in steps_ms if ms), default=None))
    return [
        1 << (fit_steps(ms, MOST_AHEAD).bit_length() - 1) if side.side.works_ahead else shared
        for side, ms in zip(sides, steps_ms, strict=True)
    ]


def fit_steps(step_ms: float | None, most: int = MOST_COUNTED) -> int:
    """Chooses a whole number of rounds of HOT_SETS steps: `most`, or as many as last half a second, at least a round.

    What a step launches may depend on its inputs. Of the two sets of a hot workload an odd number of steps would count
    one more often, and the length of the warm-up would decide which. A cold workload has more sets.
    """
    steps = min(most, max(HOT_SETS, int(COUNTED_MS / step_ms))) if step_ms else most
    return steps - steps % HOT_SETS


def count(sides: Sequence[BuiltSide], inputs: Sequence[Any], steps: Sequence[int]) -> list[Activity]:
    """Runs `steps[i]` steps of warmed-up side i under the profiler and returns the activity of each side, in order.

    All sides share one profile: a second profile right after the first can lose its device events while CUPTI detaches.
    Raises SideError when the profiler saw no kernel, or more launches than kernels, twice.
    """
    for _ in range(2):
        activities = _count_once(sides, inputs, steps)
        detach(sides[0].device)
        blind = [side.name for side, seen in zip(sides, activities, strict=True) if trace.lost_kernels(seen)]
        if not blind:
            return activities
    problem = "more launches than kernels" if any(seen.kernels for seen in activities) else NO_KERNEL
    raise SideError(blind[0], "being counted", RuntimeError(f"the profiler saw {problem}"))


def _count_once(sides: Sequence[BuiltSide], inputs: Sequence[Any], steps: Sequence[int]) -> list[Activity]:
    device = sides[0].device
    synchronize(device)
    with run_profiler(device) as profiler:
        for number, (side, its_steps) in enumerate(zip(sides, steps, strict=True)):
            with blame(side.name, "being counted"):
                _run_window(side, inputs, its_steps, _window(number))
    events = profiled_events(profiler)
    attached = device.type != "cuda" or any(map(trace.is_call, events))  # `synchronize` above is a call
    found = [read_activity(events, its_steps, _window(number)) for number, its_steps in enumerate(steps)]
    return [replace(one, attached=attached) for one in found]


def _window(number: int) -> str:
    return f"{WINDOW} {number}"


def _run_window(side: BuiltSide, inputs: Sequence[Any], steps: int, window: str) -> None:
    side.flags.apply()
    side.run_steps(inputs, min(FLUSH_STEPS, steps - 1) or 1)  # 1 where a step outlasts the profiler's start-up
    synchronize(side.device)
    with record_function(window):
        for offset in range(steps):
            side.side.step(inputs[(side.next_input + offset) % len(inputs)])
        if side.side.works_ahead:
            with record_function(f"{FILLING} {window}"):
                side.side.finish()
    # The final join of any other pipeline is no part of a step: a step would seem to have its synchronization.
    with record_function(f"{JOIN} {window}"):
        side.side.finish()
    synchronize(side.device)


def kernels_by_join(  # cuda only
    side: BuiltSide, inputs: Sequence[Any], groups: Sequence[int], steps: int
) -> Sequence[int]:
    """Counts the kernels and copies of groups of steps that are joined one by one, of a block of `steps` steps, and of
    as many joins as groups that have nothing to join. A count is 0 where the profiler lost kernels."""
    side.flags.apply()
    with run_profiler(side.device) as profiler:
        side.run_steps(inputs, FLUSH_STEPS)
        synchronize(side.device)
        for number, lengths in enumerate((groups, [steps], [0] * len(groups))):
            with record_function(_window(number)):
                for length in lengths:
                    side.run_steps(inputs, length)
            synchronize(side.device)
    events = profiled_events(profiler)
    detach(side.device)
    activities = [read_activity(events, steps, _window(number)) for number in range(3)]
    lost = any(map(trace.lost_kernels, activities))
    return [0 if lost else len(one.kernels) + len(one.copies) for one in activities]


def collect(
    side: BuiltSide, activity: Activity, inputs: Sequence[Any], timer: Timer, step_ms: float | None = None
) -> dict[str, float]:  # cuda only
    """Collects every counter per step of a counted CUDA side, by the names of gpugate.counter_names.

    `step_ms` is the time of a step without the profiler, None where it was not measured.
    """
    cached = measure_data_path(side, inputs, timer.time_ms, step_ms)
    peak_bytes = {} if side.cost.peak_bytes is None else {"peak_bytes": float(side.cost.peak_bytes)}
    unprofiled = {"enqueue_ms": enqueue_ms(side, inputs), "grown_bytes": grown_bytes(side, inputs, step_ms or 0.0)}
    autotuned = {"autotuned": float(side.flags.cudnn_benchmark)}
    return {**trace.counters(activity), **unprofiled, **autotuned, **peak_bytes, **cached}


def why_missing(device: torch.device) -> str | None:
    """Returns the reason why kernels cannot be counted on this machine, or None."""
    if device.type != "cuda":
        return "kernels and copies are counted on CUDA only"
    if ProfilerActivity.CUDA in torch.profiler.supported_activities():  # type: ignore[no-untyped-call]  # cuda only
        return None
    return "this torch has no CUPTI: install a CUDA build of torch"  # cuda only

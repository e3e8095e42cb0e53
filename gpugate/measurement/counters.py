"""The counting pass, under the profiler: its counts are exact and free of noise, and nothing is timed in it.

Counters that need no profiler follow it: host time to enqueue a step, its time on cached data, and memory that a step
leaves. A leak of device memory ends a service after hours, and no timing shows it before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from time import perf_counter, perf_counter_ns
from typing import Any

from torch.profiler import record_function

from gpugate.errors import SideError
from gpugate.machine.torch_profiler import detach, profiled_events, run_profiler
from gpugate.measurement import trace
from gpugate.measurement.cold_inputs import HOT_SETS
from gpugate.measurement.device_timer import HostTimer
from gpugate.measurement.record import Counters, StepProfile
from gpugate.measurement.settings import BLOCK_MS
from gpugate.measurement.sides import BuiltSide, allocated_bytes, blame, synchronize
from gpugate.measurement.trace import FILLING, JOIN, WINDOW, Activity, read_activity
from gpugate.measurement.warm_up import steps_for

FLUSH_STEPS = 2  # at most: the profiler's start-up and work still in flight end in these steps, outside the window
MOST_COUNTED, MOST_AHEAD, COUNTED_MS = 4, 64, 500.0
NOT_COUNTED = "kernels and copies are counted on CUDA only"
NO_KERNEL = (
    "no kernel, so none can be counted: end every other profiler of this GPU, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)


def steps_worth_counting(sides: Sequence[BuiltSide], steps_ms: Sequence[float]) -> list[int]:
    """Chooses the number of counted steps of each side: one, by the slower side, for all that do not work ahead.

    Counts repeat from step to step, so few steps suffice. A side that works ahead refills its queues at the end, which
    would dominate few steps: of such a side up to 64 steps are counted, a power of two, so that a slightly slower night
    counts the same number of steps.
    """
    shared = fit_steps(max(steps_ms))
    return [
        1 << (fit_steps(ms, MOST_AHEAD).bit_length() - 1) if side.side.works_ahead else shared
        for side, ms in zip(sides, steps_ms, strict=True)
    ]


def fit_steps(step_ms: float, most: int = MOST_COUNTED) -> int:
    """Chooses a whole number of rounds of HOT_SETS steps: `most`, or as many as last half a second, at least a round.

    What a step launches may depend on its inputs. Of the two sets of a hot workload an odd number of steps would count
    one more often, and the length of the warm-up would decide which. A cold workload has more sets.
    """
    steps = min(most, max(HOT_SETS, int(COUNTED_MS / max(step_ms, 1e-6))))
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
            began = perf_counter()
            with blame(side.name, "being counted"):
                _run_window(side, inputs, its_steps, _window(number))
            side.await_refill(1e3 * (perf_counter() - began) / its_steps)
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
            side.side.step(inputs[offset % len(inputs)])
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
    side: BuiltSide, activity: Activity, inputs: Sequence[Any], timer: HostTimer, step_ms: float
) -> dict[str, float]:  # cuda only
    """Collects every counter per step of a counted CUDA side, by the names of `counter_names`.

    `step_ms` is the time of a step without the profiler.
    """
    cached = measure_data_path(side, timer.time_ms, step_ms)
    peak_bytes = {} if side.cost.peak_bytes is None else {"peak_bytes": float(side.cost.peak_bytes)}
    unprofiled = {"enqueue_ms": enqueue_ms(side, inputs), "grown_bytes": grown_bytes(side, inputs, step_ms)}
    autotuned = {"autotuned": float(side.flags.cudnn_benchmark)}
    return {**trace.counters(activity), **unprofiled, **autotuned, **peak_bytes, **cached}


FEWEST_ENQUEUED, MOST_ENQUEUED, ENQUEUE_MS = 3, 1000, 300.0
CACHED_BLOCKS = 3
ROUNDS, STEPS = 3, 5  # steps of a round, or as many as one block has where that is fewer
ROUND_MS = 300.0  # where STEPS steps would take longer, a round has fewer steps
LEVELS, LOOKS = 4, 3  # levels of allocated memory, each the least of LOOKS readings, with a round between two readings
LASTING = 0.5  # memory that leaks goes on to rise by at least this share of its first rises


def enqueue_ms(side: BuiltSide, inputs: Sequence[Any]) -> float:
    """Measures the median host time until `step` returns, from an idle device and without a profiler.

    The median is of 3 to 1000 steps, as many as begin within 0.3 s. Few short steps would all lie in one slow moment of
    the host.
    """
    side.flags.apply()
    times_ms: list[float] = []
    until_ns = perf_counter_ns() + ENQUEUE_MS * 1e6
    with blame(side.name, "being enqueued"):
        while len(times_ms) < FEWEST_ENQUEUED or (len(times_ms) < MOST_ENQUEUED and perf_counter_ns() < until_ns):
            synchronize(side.device)
            step = side.side.step  # reading `step` starts the work of some faults
            started = perf_counter_ns()
            step(inputs[len(times_ms) % len(inputs)])
            times_ms.append((perf_counter_ns() - started) / 1e6)
            side.side.finish()
    synchronize(side.device)
    return statistics.median(times_ms)


def measure_data_path(
    side: BuiltSide, time_ms: Callable[[Callable[[], None]], float], real_ms: float
) -> dict[str, float]:
    """Measures `cached_step_ms` and `data_path_efficiency`; empty where the side has no `cached_step`.

    At an efficiency of 1, loading and copying are hidden or cost nothing; at 0.3, seven tenths of a step wait for data.
    The cached time is the median of three blocks. `real_ms` is the real time per step.
    """
    cached = side.side.cached_step
    if cached is None:
        return {}

    def block(steps: int) -> None:
        for _ in range(steps):
            cached()
        side.side.finish()

    side.flags.apply()
    with blame(side.name, "running steps on cached data"):
        block(1)  # untimed: it may set up buffers
        first_ms = time_ms(partial(block, 1))
        # Cached data has no loader and no stock: a block may be shorter than a real one.
        steps = min(side.steps_per_block, steps_for(first_ms, BLOCK_MS[side.device.type]))
        seen_ms = [first_ms] if steps == 1 else []  # a block of one step is timed already
        seen_ms += [time_ms(partial(block, steps)) / steps for _ in range(CACHED_BLOCKS - len(seen_ms))]
        cached_ms = statistics.median(seen_ms)
    return {"cached_step_ms": cached_ms, "data_path_efficiency": cached_ms / real_ms}


def grown_bytes(side: BuiltSide, inputs: Sequence[Any], step_ms: float) -> float:  # cuda only
    """Measures the bytes per step by which a warmed-up side's allocated device memory grows; 0 where it does not grow.

    The number is exact where no other memory comes and goes. Memory that is allocated or freed once is no leak; nor is
    memory that the garbage collector or a library's next call frees: CV-CUDA keeps a varying part of the memory that
    its last operators used. Where none of three rounds leaves more allocated, the result is 0. Else a level is the
    least of three readings. The level must rise three times, and then over as many rounds again by at least half as
    much: the memory of a library can rise by chance, but does not go on.
    """
    side.flags.apply()
    steps = min(STEPS, side.steps_per_block, steps_for(step_ms, ROUND_MS))

    def read(rounds: int) -> list[int]:
        """Reads the allocated bytes before the rounds, and after every round."""
        readings = [allocated_bytes(side.device)]
        for _ in range(rounds):
            side.run_steps(inputs, steps)
            readings.append(allocated_bytes(side.device))
        return readings

    def measure_rises() -> list[int]:
        """Measures LEVELS levels, and returns the bytes by which each one exceeds the one before it."""
        readings = read(LEVELS * LOOKS - 1)
        levels = [min(readings[first : first + LOOKS]) for first in range(0, len(readings), LOOKS)]
        return [after - before for before, after in pairwise(levels)]

    with blame(side.name, "being watched for growing memory"):
        if all(after <= before for before, after in pairwise(read(ROUNDS))):
            return 0.0
        rises = measure_rises()
        if min(rises) <= 0:
            return 0.0
        later = measure_rises()
    if sum(later) < LASTING * len(later) * statistics.median(rises):
        return 0.0
    return statistics.median([*rises, *later]) / (LOOKS * steps)


LEAST_ACTIVE = 0.05  # of the time; where the GPU is active for less, kernels do not show what a step does


@dataclass(frozen=True)
class CountedSide:
    """A side's counters, its profile, and its signature (the names of all that ran), each per step."""

    counters: Counters
    profile: StepProfile
    signature: Mapping[str, float]

    def same_work(self, other: CountedSide) -> bool:
        """True where both signatures are equal and the device is active enough for them to explain a step's time.

        Where the device is idle nearly all the time, the host's work decides, and a signature shows little of it.
        """
        busy = max(side.counters.get("active_fraction", 1.0) for side in (self, other))  # no counter on a CPU
        return self.signature == other.signature and busy >= LEAST_ACTIVE

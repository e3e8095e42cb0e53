"""Faults of a known size: a slowdown, more CPU work, and a longer kernel.

`slow` and `cpu-work`: every block of steps gets a share of its own time on top. The engine reads `Side.step` once at
the beginning of a block and calls `finish()` at its end, both inside the timed window. So these faults time the block
between the two and do the extra work once, in `finish()`: a wrapper around each step would cost a third of a percent
of a step of 30 us.

What the fault itself adds to a block comes on top: 3 to 6 us on a CPU, where 1 % of a block of 10 ms is 1.05 %. On
CUDA the launch of the sleep is a part of the extra work, the two events are not: on an H200 a slowdown is 0.1 to 0.2 %
of the step larger than its name, and up to a third of itself larger in pipelines of 100 us a step.

`longer-kernel`: each step launches a kernel for a share of the time of the step's own kernels.
The kernel computes a Legendre polynomial by its recurrence: its time grows in proportion to the degree, and its result
is dropped. The profiler measures the side's own kernels and this one alike, in steps that the engine runs before it
times any; their outputs are right. What a first step compiles, autotunes or captures is not measured. The counts of
kernels and launches rise by one; neither the CPU nor a copy does more.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from time import perf_counter, process_time_ns, thread_time_ns
from typing import Any, NamedTuple

import torch

from gpugate.machine.processes import list_descendants, worker_cpu_ns
from gpugate.machine.torch_profiler import profiled_events, run_profiler
from gpugate.workload import Build, Context, Side

RECENT_BLOCKS = 3  # their median: one disturbed block must not make the next one's extra work wrong
FIRST_CYCLES_PER_MS = 1.5e6  # the SM clock of a GPU within a factor of two, used until a sleep was measured
CLOCK_RANGE = 5  # a rate may be so many times above or below FIRST_CYCLES_PER_MS: an idle GPU of 2 GHz runs at 0.35
FEWEST_CYCLES = 20_000  # 10 us: for a shorter sleep, events measure the launch alone
PROFILED_STEPS, MOST_PROFILED = 3, 8  # a profile right after another one can lose its kernels
DEGREES = (200, 1000)
ELEMENTS = 2**16  # a part of the GPU's threads: the time is that of one chain of operations
KERNEL_NAME = "legendre"


class BusyLoop:
    """A loop by the clock `clock_s`, for `share` of what `spent_s` counts between `begin()` and `end()`, which surround
    the steps of one block."""

    def __init__(self, share: float, spent_s: Callable[[], float], clock_s: Callable[[], float]) -> None:
        self.share, self._spent_s, self._clock_s = share, spent_s, clock_s
        self._began_s = 0.0

    def begin(self) -> None:
        self._began_s = self._spent_s()

    def end(self) -> None:
        until_s = self._clock_s() + self.share * (self._spent_s() - self._began_s)
        while self._clock_s() < until_s:
            pass


class DeviceExtraWork:
    """A sleeping kernel on the current stream, for `share` of the device time of recent blocks.

    A block's own time is not known before it has run, and waiting for it would leave the device idle: the median of the
    last three blocks replaces it. The rate of cycles comes from the last three sleeps, launch included, so the launch
    is a part of the extra work and the rate follows a changed clock. The next build of the same program begins with
    these values.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._began, self._ended, self._slept = (torch.cuda.Event(enable_timing=True) for _ in range(3))  # type: ignore[no-untyped-call]
        self._cycles: int | None = None  # of the last sleep; None: no block has ended since
        self._block_ms = deque[float](maxlen=RECENT_BLOCKS)
        self._cycles_per_ms = deque[float](maxlen=RECENT_BLOCKS)

    def begin(self) -> None:
        self._read_last_block()
        self._began.record()

    def end(self) -> None:
        self._ended.record()
        rate = statistics.median(self._cycles_per_ms or [FIRST_CYCLES_PER_MS])
        self._cycles = int(self.share * statistics.median(self._block_ms or [0.0]) * rate)
        if self._cycles:
            torch.cuda._sleep(self._cycles)  # type: ignore[no-untyped-call]
        self._slept.record()

    def _read_last_block(self) -> None:
        """Reads the time of the last block, and the rate of its sleep where the clock of a GPU can have it.

        The first sleep of a process also loads its kernel. Its rate would make later sleeps too short to measure.
        """
        if self._cycles is None or not self._slept.query():  # type: ignore[no-untyped-call]
            return
        self._block_ms.append(self._began.elapsed_time(self._ended))
        if self._cycles >= FEWEST_CYCLES:
            rate = self._cycles / self._ended.elapsed_time(self._slept)
            if 1 / CLOCK_RANGE <= rate / FIRST_CYCLES_PER_MS <= CLOCK_RANGE:
                self._cycles_per_ms.append(rate)
        self._cycles = None


class _SlowedSide(Side):
    """The side with extra work after every block but the first step, which compiles and autotunes."""

    def __init__(self, side: Side, extra: BusyLoop | DeviceExtraWork) -> None:
        self._side, self._extra = side, extra
        self._running, self._first = False, True
        kept = {each.name: getattr(side, each.name) for each in fields(side)}
        super().__init__(**{**kept, "finish": self._finish})

    @property
    def step(self) -> Callable[[Any], torch.Tensor]:
        if not self._first:  # each read begins the block anew: the steps that used up the stock are not timed
            self._extra.begin()
            self._running = True
        return self._side.step

    @step.setter
    def step(self, step: Callable[[Any], torch.Tensor]) -> None:
        """Ignores the value that the dataclass sets once."""

    def _finish(self) -> None:
        self._side.finish()
        if self._running:
            self._extra.end()
        self._running = self._first = False


def slow_down(build: Build, share: float) -> Build:
    """Returns a build function whose side takes `share` more time per block of steps: 0.05 is 5 %.

    On CUDA the extra work is device work, on a CPU host work.
    """
    on_device = cache(lambda: DeviceExtraWork(share))

    def build_faulty(context: Context) -> Side:
        on_cuda = context.device.type == "cuda"
        return _SlowedSide(build(context), on_device() if on_cuda else BusyLoop(share, perf_counter, perf_counter))

    return build_faulty


def use_more_cpu(build: Build, share: float) -> Build:
    """Returns a build function whose side uses `share` more CPU time per block of steps: 0.05 is 5 %.

    That time is of this process and its workers. Where the stepping thread waits meanwhile, for workers or for a GPU,
    the work may cost no time.
    """

    def build_faulty(context: Context) -> Side:
        list_workers = cache(list_descendants)  # those that the first step has started

        def spent_s() -> float:
            return (process_time_ns() + worker_cpu_ns(list_workers())) / 1e9

        return _SlowedSide(build(context), BusyLoop(share, spent_s, lambda: thread_time_ns() / 1e9))

    return build_faulty


# --- a longer kernel --------------------------------------------------------------------------------------------------


class Profiled(NamedTuple):
    """The times of kernels in one profiled step, in milliseconds: the side's own, and those of DEGREES."""

    own_ms: float
    extra_ms: tuple[float, ...]


def find_degree(steps: Sequence[Profiled], share: float) -> int:
    """Computes the degree at which the kernel takes `share` of the side's own kernels, by the medians over steps.

    Raises ValueError where the share is shorter than the shortest kernel.
    """
    own_ms = statistics.median([step.own_ms for step in steps])
    low_ms, high_ms = (statistics.median([step.extra_ms[index] for step in steps]) for index in range(len(DEGREES)))
    per_degree_ms = (high_ms - low_ms) / (DEGREES[1] - DEGREES[0])
    shortest_ms = low_ms - per_degree_ms * (DEGREES[0] - 2)
    if share * own_ms < shortest_ms:
        size = f"its kernels take {own_ms:.3g} ms a step, and no kernel takes {100 * share:g} % of that"
        raise ValueError(f"{size}: give {math.ceil(100 * shortest_ms / own_ms)} or more")
    return round(DEGREES[0] + (share * own_ms - low_ms) / per_degree_ms)


@dataclass
class _Kernel:
    """The kernel, and its degree once that is known: the next build of the same program begins with it."""

    share: float
    degree: int | None = None
    profiled: list[Profiled] = field(default_factory=list)
    tried: int = 0

    def add(self, found: Profiled | None) -> None:
        """Adds a profiled step; None: its profile lost kernels. Raises ValueError after too many of those."""
        self.tried += 1
        self.profiled += [found] if found is not None else []
        if len(self.profiled) == PROFILED_STEPS:
            self.degree = find_degree(self.profiled, self.share)
        elif self.tried == MOST_PROFILED:
            raise ValueError("the profiler saw no kernels, and longer-kernel is a share of them: end other profilers")


def lengthen(build: Build, share: float) -> Build:
    """Returns a build function whose side launches `share` more kernel time in each step: 0.05 is 5 %."""
    kernel = _Kernel(share)

    def build_faulty(context: Context) -> Side:
        side, values = build(context), torch.full((ELEMENTS,), 0.5, device=context.device)
        dropped, first = torch.empty_like(values), [True]

        def launch(degree: int) -> None:
            torch.special.legendre_polynomial_p(values, degree, out=dropped)

        def step(inputs: Any) -> Any:
            if first:
                first.clear()
                launch(DEGREES[0])  # torch compiles the kernel
                return side.step(inputs)
            if kernel.degree is None:
                output, found = _profile(lambda: side.step(inputs), launch, context.device)
                kernel.add(found)
                return output
            output = side.step(inputs)
            launch(kernel.degree)
            return output

        return replace(side, step=step)

    return build_faulty


def _profile(
    step: Callable[[], Any], launch: Callable[[int], None], device: torch.device
) -> tuple[Any, Profiled | None]:  # cuda only
    """Profiles a step and the kernel of each of DEGREES; the second value is None where the profile lost kernels."""
    torch.cuda.synchronize(device)
    with run_profiler(device) as profiler:
        output = step()
        for degree in DEGREES:
            launch(degree)
        torch.cuda.synchronize(device)
    kernels = sorted(
        (one for one in profiled_events(profiler) if one.get("cat") == "kernel"), key=lambda one: one["ts"]
    )
    own_ms = sum(one["dur"] for one in kernels if KERNEL_NAME not in one["name"]) / 1e3
    extra_ms = tuple(one["dur"] / 1e3 for one in kernels if KERNEL_NAME in one["name"])
    return output, Profiled(own_ms, extra_ms) if own_ms and len(extra_ms) == len(DEGREES) else None

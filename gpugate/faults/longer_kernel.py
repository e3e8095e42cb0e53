"""More GPU work of a known size: each step launches a kernel for a share of the time of the step's own kernels.

The kernel computes a Legendre polynomial by its recurrence: its time grows in proportion to the degree, and its result
is dropped. The profiler measures the side's own kernels and this one alike, in steps that the engine runs before it
times any; their outputs are right. What a first step compiles, autotunes or captures is not measured. The counts of
kernels and launches rise by one; neither the CPU nor a copy does more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from gpugate.machine.torch_profiler import profiled_events, run_profiler
from gpugate.workload import Build, Context, Side

PROFILED_STEPS, MOST_PROFILED = 3, 8  # a profile right after another one can lose its kernels
DEGREES = (200, 1000)
ELEMENTS = 2**16  # a part of the GPU's threads: the time is that of one chain of operations
NAME = "legendre"


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
    own_ms = sum(one["dur"] for one in kernels if NAME not in one["name"]) / 1e3
    extra_ms = tuple(one["dur"] / 1e3 for one in kernels if NAME in one["name"])
    return output, Profiled(own_ms, extra_ms) if own_ms and len(extra_ms) == len(DEGREES) else None

"""A case whose optimized side has a known fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from gpugate.errors import SideError
from gpugate.faults.fault import KINDS, OF_RANKS, Fault
from gpugate.faults.sides import (
    break_graphs,
    copy_output,
    disable_graphs,
    launch_more,
    leak_memory,
    make_output_wrong,
    put_into_ranks,
    return_stale_output,
    skip_work,
    synchronize_every_step,
    use_pageable_memory,
)
from gpugate.faults.slow import lengthen, slow_down, use_more_cpu
from gpugate.workload import Build, Case, Context, Side

if TYPE_CHECKING:
    import torch


def mutate(case: Case, fault: Fault, device: torch.device) -> Case:
    """Puts the fault into the optimized side of a case; the reference stays as it is, also where it is an optimization.

    Raises SideError with the reason when the case cannot have the fault. Building and the first step raise the problems
    that are known only then.
    """
    kind, reason = KINDS[fault.kind], None
    if device.type != "cuda" and kind.not_on_a_cpu:
        reason = kind.not_on_a_cpu
    elif kind.of_ranks and not case.spans_gpus:
        reason = f"{fault.kind} is a fault between GPUs, and this case runs on one device"
    elif fault.kind == "skip-work" and case.size.items < 2:
        reason = "there is no half of 1 item per step"
    if reason is not None:
        raise SideError(case.optimization.name, f"being mutated by {fault}", ValueError(reason))
    faulty = replace(case.optimization, build=apply(fault, case.optimization.build))
    others = case.workload.optimizations
    optimizations = tuple(faulty if each.name == faulty.name else each for each in others)
    return replace(case, workload=replace(case.workload, optimizations=optimizations), optimization=faulty)


@dataclass(frozen=True)
class FaultyBuild:
    """A build function whose side has the fault. Another rank of a job puts the fault into its own build."""

    fault: Fault
    build: Build  # without the fault
    _faulty: Build

    def __call__(self, context: Context) -> Side:
        return self._faulty(context)


def apply(fault: Fault, build: Build) -> Build:
    """Returns a build function whose side has the fault."""
    return FaultyBuild(fault, build, _FAULTS[fault.kind](build, fault.amount))


def _afterwards(change: Callable[[Context, Side], Side]) -> Callable[[Build, float], Build]:
    """Makes a fault from a change of a side that was built without a fault."""
    return lambda build, amount: lambda context: change(context, build(context))


_FAULTS: Mapping[str, Callable[[Build, float], Build]] = {
    "slow": lambda build, percent: slow_down(build, percent / 100),
    "longer-kernel": lambda build, percent: lengthen(build, percent / 100),
    "cpu-work": lambda build, percent: use_more_cpu(build, percent / 100),
    "sync": _afterwards(synchronize_every_step),
    "pageable": lambda build, _: use_pageable_memory(build),
    "launch": _afterwards(launch_more),
    "no-graph": lambda build, _: disable_graphs(build),
    "graph-break": lambda build, _: break_graphs(build),
    "copy": _afterwards(copy_output),
    "wrong": lambda build, relative_l2: lambda context: make_output_wrong(context, build(context), relative_l2),
    "stale": _afterwards(return_stale_output),
    "leak": _afterwards(leak_memory),
    "skip-work": lambda build, _: skip_work(build),
    **{kind: partial(put_into_ranks, kind) for kind in OF_RANKS},
}

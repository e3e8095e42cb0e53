"""Gradients across GPUs: what a training step on every GPU costs more than the same step without communication.

The speedup over the step without communication is the efficiency of weak scaling: 0.95 is 5 % of the time spent on
waiting for other ranks. On a CPU two processes run tiny models, and only outputs and counts are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from gpugate.workload import (
    TOLERANCE_BY_DTYPE,
    Contract,
    Limit,
    Needs,
    Optimization,
    Point,
    Side,
    Size,
    Tolerance,
    Workload,
)
from workloads.ddp_scaling import rungs

TWO_GPUS = Needs(gpus=2)
TOLERANCE: Mapping[str, Tolerance] = {
    "float32": Tolerance(relative_l2=1e-6, max_error=1e-5),
    "bfloat16": TOLERANCE_BY_DTYPE["bfloat16"],
}
MOST_LAG = 0.35  # of a step: for so long may the other ranks wait for the slowest one, under the profiler


@dataclass(frozen=True)
class Counts:
    """The collectives of one step on one kind of device: their number, the bytes of a rank's inputs, and how many begin
    before the backward pass ends. `byte_count` is None where it depends on the number of ranks."""

    number: int
    byte_count: int | None
    early: int


def _exactly(counter: str, value: float) -> Limit:
    return Limit(counter, at_least=value, at_most=value)


def _contract(counts: Counts, *limits: Limit) -> Contract:
    engaged = [_exactly("collectives", counts.number), _exactly("early_collectives", counts.early)]
    engaged += [] if counts.byte_count is None else [_exactly("collective_bytes", counts.byte_count)]
    return Contract(tuple(engaged), limits=(Limit("rank_lag", at_most=MOST_LAG), *limits))


def _rung(
    name: str, build: Callable[..., Side], model: str, efficiency: float, on_gpu: Counts, on_cpu: Counts
) -> Optimization:
    hidden = [Limit("exposed_communication", at_most=1.05 - efficiency)] if on_gpu.early else []
    return Optimization(
        name,
        partial(build, model=model),
        {"cuda": efficiency, "cpu": 0.01},  # no times are judged on a CPU
        needs=TWO_GPUS,
        tolerance=TOLERANCE,
        contract={"cuda": _contract(on_gpu, *hidden), "cpu": _contract(on_cpu)},
    )


def _buckets(model: str, megabytes: int, efficiency: float, on_gpu: Counts, on_cpu: Counts) -> Optimization:
    build = partial(rungs.buckets, megabytes=megabytes)
    rung = _rung(f"bucket-{megabytes}", build, model, efficiency, on_gpu, on_cpu)
    return replace(rung, point=Point("bucket-mb", megabytes))


def _bf16(rung: Optimization) -> Optimization:
    return replace(rung, dtype="bfloat16")


X = Counts(0, 0, 0)


def _ladder(model: str) -> tuple[Optimization, ...]:
    return (
        _rung("all-reduce-afterwards", rungs.all_reduce_afterwards, model, 0.7, X, X),
        _rung("overlap", rungs.overlap, model, 0.9, X, X),
        *(_buckets(model, megabytes, 0.85, X, X) for megabytes in (1, 5, 25, 100)),
        _rung("bucket-view", rungs.bucket_view, model, 0.9, X, X),
        _bf16(_rung("bf16-gradients", rungs.bf16_gradients, model, 0.9, X, X)),
        _rung("static-graph", rungs.static_graph, model, 0.9, X, X),
        _rung("fsdp2", rungs.fsdp2, model, 0.7, X, X),
    )


WORKLOADS: tuple[Workload, ...] = tuple(
    Workload(
        f"ddp-scaling/{model}",
        partial(rungs.no_sync, model=model),
        rungs.batch_number,
        sizes,
        _ladder(model),
        cold=False,
        timing="device",
    )
    for model, sizes in (
        ("resnet50", {"cuda": Size(64, flops=0, bytes=0), "cpu": Size(4, flops=0, bytes=0)}),
        ("transformer", {"cuda": Size(16, flops=0, bytes=0), "cpu": Size(2, flops=0, bytes=0)}),
    )
)

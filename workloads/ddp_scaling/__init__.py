"""Gradients across GPUs: what a training step on every GPU costs more than the same step without communication.

The speedup over the step without communication is the efficiency of weak scaling: 0.95 is 5 % of the time spent on
waiting for other ranks. On a CPU two processes run tiny models, and only outputs and counts are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from gpugate.workload import (
    DEVICE_KINDS,
    TOLERANCE_BY_DTYPE,
    Contract,
    DeviceKind,
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
# Of a step, under the profiler: the time for which other ranks may wait for the slowest one. FSDP2 gathers weights
# ahead of their use, so that a rank that is ahead waits in a gather beside its own compute: on two H200 the ranks of
# ResNet-50 waited for 32 % of a step, while 0.3 % of a step was exposed. Its limit is on the exposed time instead.
EVEN_RANKS = Limit("rank_lag", at_most=0.1)
HIDDEN = Limit("exposed_communication", at_most=0.1)
NEAR_THE_BUS = Limit("collective_bus_share", at_least=0.3)
# The limit is on the peak of rank 0, which has the largest shares. The reference has DDP's buckets too, so that no rung
# needs more: 0.75 to 1.00 of it on a CPU. The rest is the allocator's, which may hand out up to 1 MiB too much for each
# of about 110 large tensors, 2 % of 5 GB. FSDP2 holds gathered weights of two blocks besides: 1.08 of the reference on
# a CPU, whose tiny models have hardly any activations.
SAME_MEMORY = Limit("peak_bytes", at_most_of_reference=1.05)
MEMORY_OF_SHARES = Limit("peak_bytes", at_most_of_reference=1.1)
ANY = 0.01  # the promise on a CPU, where no time is judged


# The collectives of one step, which a test counts again: the bytes of all gradients, those of the blocks among them,
# and by rung the number of collectives on a GPU and on a CPU, where the models are tiny. DDP fills a bucket of 1 MB
# first and then of 25 MB.
GRADIENT_BYTES: Mapping[str, Mapping[DeviceKind, int]] = {
    "resnet50": {"cuda": 102_228_128, "cpu": 20_611_360},
    "transformer": {"cuda": 428_269_568, "cpu": 5_277_696},
}
BLOCK_BYTES: Mapping[str, Mapping[DeviceKind, int]] = {
    "resnet50": {"cuda": 93_993_984, "cpu": 12_377_216},
    "transformer": {"cuda": 226_811_904, "cpu": 3_172_352},
}
NUMBER: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "resnet50": {
        "all-reduce-afterwards": (161, 53),
        "overlap": (5, 2),
        "bucket-1": (35, 4),
        "bucket-5": (13, 3),
        "bucket-25": (4, 1),
        "bucket-100": (1, 1),
        "fsdp2": (14, 14),
    },
    "transformer": {
        "all-reduce-afterwards": (99, 51),
        "overlap": (10, 2),
        "bucket-1": (34, 5),
        "bucket-5": (26, 1),
        "bucket-25": (10, 1),
        "bucket-100": (3, 1),
        "fsdp2": (26, 14),
    },
}


def _exactly(counter: str, value: float) -> Limit:
    return Limit(counter, at_least=value, at_most=value)


def _contract(number: int, byte_count: int, overlaps: bool, *limits: Limit) -> Contract:
    """Where collectives overlap with the backward pass, all but the last are early ones, else none."""
    exact = (
        _exactly("collectives", number),
        _exactly("early_collectives", number - 1 if overlaps else 0),
        _exactly("collective_bytes", byte_count),
    )
    return Contract(exact, limits=limits)


def _rung(
    model: str,
    name: str,
    build: Callable[..., Side],
    efficiency: float,
    *limits: Limit,
    waiting: Limit = EVEN_RANKS,
    memory: Limit = SAME_MEMORY,
    counted_as: str = "overlap",
    byte_share: float = 1,
    block_share: float = 0,
) -> Optimization:
    """`limits` hold on a GPU. `byte_share` and `block_share` are the bytes of the collectives as shares of the bytes of
    all gradients and of the blocks' gradients.
    """
    contract: dict[str, Contract] = {}
    for kind, number in zip(DEVICE_KINDS, NUMBER[model][counted_as], strict=True):
        byte_count = int(byte_share * GRADIENT_BYTES[model][kind] + block_share * BLOCK_BYTES[model][kind])
        overlaps = counted_as != "all-reduce-afterwards"
        on_gpu = (waiting, memory, *limits)
        contract[kind] = _contract(number, byte_count, overlaps, *(on_gpu if kind == "cuda" else ()))
    promises = {"cuda": efficiency, "cpu": ANY}
    made = partial(build, model=model)
    return Optimization(name, made, promises, needs=TWO_GPUS, tolerance=TOLERANCE, contract=contract)


def _buckets(model: str, megabytes: int, efficiency: float) -> Optimization:
    build, name = partial(rungs.buckets, megabytes=megabytes), f"bucket-{megabytes}"
    return replace(_rung(model, name, build, efficiency, counted_as=name), point=Point("bucket-mb", megabytes))


def _ladder(model: str) -> tuple[Optimization, ...]:
    afterwards = rungs.all_reduce_afterwards
    halves = _rung(model, "bf16-gradients", rungs.bf16_gradients, 0.9, HIDDEN, byte_share=0.5)
    # All weights are gathered for the forward pass, those of the blocks again for the backward pass, and all gradients
    # are scattered: twice the gradients, and the blocks once more. The shares are of one size on 2, 4 and 8 ranks.
    fsdp2 = _rung(
        model,
        "fsdp2",
        rungs.fsdp2,
        0.7,
        waiting=HIDDEN,
        memory=MEMORY_OF_SHARES,
        counted_as="fsdp2",
        byte_share=2,
        block_share=1,
    )
    return (
        _rung(model, "all-reduce-afterwards", afterwards, 0.7, counted_as="all-reduce-afterwards"),
        _rung(model, "overlap", rungs.overlap, 0.9, HIDDEN, NEAR_THE_BUS),
        *(_buckets(model, megabytes, 0.8) for megabytes in (1, 5, 25, 100)),
        _rung(model, "bucket-view", rungs.bucket_view, 0.9, HIDDEN, NEAR_THE_BUS),
        replace(halves, dtype="bfloat16"),
        _rung(model, "static-graph", rungs.static_graph, 0.9, HIDDEN, NEAR_THE_BUS),
        fsdp2,
    )


def _workload(model: str, on_gpu: int, on_cpu: int) -> Workload:
    """`on_gpu` and `on_cpu` are the items of a rank. No yardstick bounds a step, whose gradients cross between GPUs."""
    sizes: dict[DeviceKind, Size] = {
        "cuda": Size(on_gpu, flops=0, bytes=0),
        "cpu": Size(on_cpu, flops=0, bytes=0),
    }
    baseline = partial(rungs.no_sync, model=model)
    return Workload(f"ddp-scaling/{model}", baseline, rungs.batch_number, sizes, _ladder(model), cold=False)


WORKLOADS: tuple[Workload, ...] = (_workload("resnet50", 64, 4), _workload("transformer", 16, 2))

"""Gradients across GPUs: what a training step on every GPU costs more than the same step without communication.

The speedup over the step without communication is the efficiency of weak scaling: 0.95 is 5 % of the time spent on
waiting for other ranks. One model has two sizes: with many items a rank, a backward pass takes much longer than the
all-reduce of all gradients, and with few items about as long. On a CPU two processes run a tiny model by the same code,
and only outputs and counts are judged.

Every side, and the expected gradient of the whole batch by one process, computes in bf16 by autocast, with weights and
gradients in float32. All sides round alike: on a CPU the rungs were right to 1e-6, `bf16-gradients` to 3e-3 and
`fsdp2`, whose embeddings and sums over layers are in bf16 too, to 2e-2. Each weight's gradient is compared by itself:
that of one rank alone is off by 0.9 in every weight, so that no lost bucket is within a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from gpugate.workload import (
    DEVICE_KINDS,
    Context,
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

# The efficiency of each rung that is promised on a GPU, estimated from FLOPs and bytes: no run is recorded yet.
EFFICIENCY: Mapping[str, Mapping[str, float]] = {
    "all-reduce-afterwards": {"compute-bound": 0.8, "wire-bound": 0.35},
    "overlap": {"compute-bound": 0.9, "wire-bound": 0.6},
    "bucket-1": {"compute-bound": 0.9, "wire-bound": 0.6},
    "bucket-5": {"compute-bound": 0.9, "wire-bound": 0.6},
    "bucket-25": {"compute-bound": 0.9, "wire-bound": 0.6},
    "bucket-100": {"compute-bound": 0.85, "wire-bound": 0.4},
    "bucket-view": {"compute-bound": 0.9, "wire-bound": 0.6},
    "bf16-gradients": {"compute-bound": 0.9, "wire-bound": 0.6},
    "static-graph": {"compute-bound": 0.9, "wire-bound": 0.6},
    "fsdp2": {"compute-bound": 0.9, "wire-bound": 0.6},
}
TWO_GPUS = Needs(gpus=2)
# Of a step, under the profiler: the time for which other ranks may wait for the slowest one. FSDP2 gathers weights
# ahead of their use, so that a rank that is ahead waits in a gather beside its own compute: on two H200 the ranks of a
# ResNet-50 waited for 32 % of a step, while 0.3 % of a step was exposed. Its limit is on the exposed time instead.
EVEN_RANKS = Limit("rank_lag", at_most=0.1)
# A last rank that takes twice its time exposes at least 0.45 of a step. The wire-bound size cannot hide all buckets.
HIDDEN = {
    "compute-bound": Limit("exposed_communication", at_most=0.1),
    "wire-bound": Limit("exposed_communication", at_most=0.4),
}
NEAR_THE_BUS = Limit("collective_bus_share", at_least=0.3)
# The limit is on the peak of rank 0, which has the largest shares. The reference has DDP's buckets too, so that no rung
# needs more. The rest is the allocator's, which may hand out up to 1 MiB too much for each of about 40 large tensors,
# 2 % of 2 GB. FSDP2 holds gathered weights of two blocks besides.
SAME_MEMORY = Limit("peak_bytes", at_most_of_reference=1.05)
MEMORY_OF_SHARES = Limit("peak_bytes", at_most_of_reference=1.1)
WEIGHTS_IN_BF16 = Tolerance(relative_l2=5e-2, max_error=1e-1)
ANY = 0.01  # the promise on a CPU, where no time is judged


# The collectives of one step, which a test counts again: the bytes of all gradients, those of the blocks among them,
# and by rung the number of collectives on a GPU and on a CPU, where the model is tiny. DDP fills a bucket of 1 MB first
# and then of 25 MB.
GRADIENT_BYTES: Mapping[DeviceKind, int] = {"cuda": 537_116_672, "cpu": 3_691_520}
BLOCK_BYTES: Mapping[DeviceKind, int] = {"cuda": 402_866_176, "cpu": 1_586_176}
NUMBER: Mapping[str, tuple[int, int]] = {
    "all-reduce-afterwards": (27, 27),
    "overlap": (8, 2),
    "bucket-1": (10, 3),
    "bucket-5": (10, 1),
    "bucket-25": (8, 1),
    "bucket-100": (4, 1),
    "fsdp2": (8, 8),
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
    size: str,
    name: str,
    build: Callable[[Context], Side],
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
    for kind, number in zip(DEVICE_KINDS, NUMBER[counted_as], strict=True):
        byte_count = int(byte_share * GRADIENT_BYTES[kind] + block_share * BLOCK_BYTES[kind])
        overlaps = counted_as != "all-reduce-afterwards"
        on_gpu = (waiting, memory, *limits)
        contract[kind] = _contract(number, byte_count, overlaps, *(on_gpu if kind == "cuda" else ()))
    promises = {"cuda": EFFICIENCY[name][size], "cpu": ANY}
    return Optimization(name, build, promises, dtype="bfloat16", needs=TWO_GPUS, contract=contract)


def _buckets(size: str, megabytes: int) -> Optimization:
    build, name = partial(rungs.buckets, megabytes=megabytes), f"bucket-{megabytes}"
    return replace(_rung(size, name, build, counted_as=name), point=Point("bucket-mb", megabytes))


def _ladder(size: str) -> tuple[Optimization, ...]:
    afterwards, hidden = "all-reduce-afterwards", HIDDEN[size]
    # All weights are gathered in bf16 for the forward pass, those of the blocks again for the backward pass, and all
    # gradients are scattered in float32. The shares are of one size on 2, 4 and 8 ranks.
    fsdp2 = _rung(
        size,
        "fsdp2",
        rungs.fsdp2,
        waiting=hidden,
        memory=MEMORY_OF_SHARES,
        counted_as="fsdp2",
        byte_share=1.5,
        block_share=0.5,
    )
    return (
        _rung(size, afterwards, rungs.all_reduce_afterwards, counted_as=afterwards),
        _rung(size, "overlap", rungs.overlap, hidden, NEAR_THE_BUS),
        *(_buckets(size, megabytes) for megabytes in (1, 5, 25, 100)),
        _rung(size, "bucket-view", rungs.bucket_view, hidden, NEAR_THE_BUS),
        _rung(size, "bf16-gradients", rungs.bf16_gradients, hidden, byte_share=0.5),
        _rung(size, "static-graph", rungs.static_graph, hidden, NEAR_THE_BUS),
        replace(fsdp2, tolerance={"bfloat16": WEIGHTS_IN_BF16}),
    )


def _workload(size: str, on_gpu: int, on_cpu: int) -> Workload:
    """`on_gpu` and `on_cpu` are the items of a rank. No yardstick bounds a step, whose gradients cross between GPUs."""
    sizes: dict[DeviceKind, Size] = {
        "cuda": Size(on_gpu, flops=0, bytes=0),
        "cpu": Size(on_cpu, flops=0, bytes=0),
    }
    return Workload(f"ddp-scaling/{size}", rungs.no_sync, rungs.batch_number, sizes, _ladder(size), cold=False)


WORKLOADS: tuple[Workload, ...] = (_workload("compute-bound", 256, 4), _workload("wire-bound", 16, 2))

"""Gradients across GPUs: what a training step on every GPU costs more than the same step without communication.

The speedup over the step without communication is the efficiency of weak scaling: 0.95 is 5 % of the time spent on
waiting for other ranks. There are two sizes: the backward pass of a transformer over many tokens takes much longer than
the all-reduce of all gradients, and that of a perceptron over few tokens about as long. On a CPU two processes run tiny
models by the same code, and only outputs and counts are judged.

Every side, and the expected gradient of the whole batch by one process, computes in bf16 by autocast, with weights and
gradients in float32. All sides round alike: on a CPU the rungs were right to 1e-6, `bf16-gradients` to 3e-3 and
`fsdp2`, whose embeddings and sums over layers are in bf16 too, to 2e-2. Each weight's gradient is compared by itself:
that of one rank alone is off by 0.9 in every weight, so that no lost bucket is within a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from gpugate.workload import (
    DEVICE_KINDS,
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
from workloads.ddp_scaling.rungs import Kind

TWO_GPUS = Needs(gpus=2)
# Of a step, under the profiler: the time for which other ranks may wait for the slowest one. In 25 measurements on two
# pairs of H200 it was 0.01 to 0.26, and 0.18 to 0.46 where the wire bounds; beside a rank that takes twice its time, it
# was 0.74. FSDP2 gathers weights ahead of their use, so that a rank that is ahead waits in a gather beside its own
# compute: on two H200 the ranks of a ResNet-50 waited for 32 % of a step, while 0.3 % of a step was exposed. Its limit
# is on the exposed time instead.
EVEN_RANKS = Limit("rank_lag", at_most=0.6)
NEAR_THE_BUS = Limit("collective_bus_share", at_least=0.3)
# The limits are on the peak of rank 0, which has the largest shares, in the second step: DDP, which averages gradients
# from the first one on, then makes its buckets anew. On two H200 it held 0.54 GB more than the reference, as much as
# all gradients: 1.10 times the 5.14 GB of the transformer, whose activations are large, and 1.33 times the 1.63 GB of
# the perceptron. FSDP2 holds shares, and the gathered weights of two blocks: 0.92.
MEMORY_OF_SHARES = Limit("peak_bytes", at_most_of_reference=1.1)
WEIGHTS_IN_BF16 = Tolerance(relative_l2=5e-2, max_error=1e-1)
ANY = 0.01  # the promise on a CPU, where no time is judged


@dataclass(frozen=True)
class Training:
    """A size: its model, the items of a rank, and what a test counts again.

    `gradient_bytes` and `block_bytes` are the bytes of all gradients and of the blocks' gradients. `number` is the
    number of collectives of a step on a GPU and on a CPU, by rung: DDP fills a bucket of 1 MB first and then of 25 MB.
    `efficiency` is promised on a GPU; all kept it in one process on two H200, but `bf16-gradients` of the second size,
    which is estimated. `memory` is the limit of a rung with buckets.
    """

    model: Kind
    items: Mapping[DeviceKind, int]
    gradient_bytes: Mapping[DeviceKind, int]
    block_bytes: Mapping[DeviceKind, int]
    hidden: Limit
    number: Mapping[str, tuple[int, int]]
    efficiency: Mapping[str, float]
    memory: Limit


COMPUTE_BOUND = Training(
    "transformer",
    {"cuda": 256, "cpu": 4},
    gradient_bytes={"cuda": 537_116_672, "cpu": 3_691_520},
    block_bytes={"cuda": 402_866_176, "cpu": 1_586_176},
    hidden=Limit("exposed_communication", at_most=0.1),  # a last rank that takes twice its time exposes 0.45 of a step
    number={
        "all-reduce-afterwards": (27, 27),
        "overlap": (8, 2),
        "bucket-1": (10, 3),
        "bucket-5": (10, 1),
        "bucket-25": (8, 1),
        "bucket-100": (4, 1),
        "fsdp2": (8, 8),
    },
    efficiency={
        "all-reduce-afterwards": 0.8,
        "overlap": 0.9,
        "bucket-1": 0.9,
        "bucket-5": 0.9,
        "bucket-25": 0.9,
        "bucket-100": 0.85,
        "bucket-view": 0.9,
        "bf16-gradients": 0.9,
        "static-graph": 0.9,
        "fsdp2": 0.7,
    },
    memory=Limit("peak_bytes", at_most_of_reference=1.15),
)
# Each weight is larger than any bucket, so that a sweep of bucket sizes would be one point. FSDP2, whose weights cross
# the wire three times in a step, gains nothing here.
WIRE_BOUND = Training(
    "perceptron",
    {"cuda": 16, "cpu": 2},
    gradient_bytes={"cuda": 536_870_912, "cpu": 2_359_296},
    block_bytes={"cuda": 268_435_456, "cpu": 262_144},
    hidden=Limit("exposed_communication", at_most=0.6),  # the wire cannot hide behind so few tokens
    number={"all-reduce-afterwards": (6, 6), "overlap": (6, 2)},
    efficiency={
        "all-reduce-afterwards": 0.53,
        "overlap": 0.55,
        "bucket-view": 0.55,
        "bf16-gradients": 0.45,
        "static-graph": 0.55,
    },
    memory=Limit("peak_bytes", at_most_of_reference=1.5),
)


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
    size: Training,
    name: str,
    build: Callable[..., Side],
    *limits: Limit,
    waiting: Limit = EVEN_RANKS,
    memory: Limit | None = None,
    counted_as: str = "overlap",
    byte_share: float = 1,
    block_share: float = 0,
) -> Optimization:
    """`limits` hold on a GPU. `byte_share` and `block_share` are the bytes of the collectives as shares of the bytes of
    all gradients and of the blocks' gradients.
    """
    contract: dict[str, Contract] = {}
    for kind, number in zip(DEVICE_KINDS, size.number[counted_as], strict=True):
        byte_count = int(byte_share * size.gradient_bytes[kind] + block_share * size.block_bytes[kind])
        overlaps = counted_as != "all-reduce-afterwards"
        on_gpu = (waiting, memory or size.memory, *limits)
        contract[kind] = _contract(number, byte_count, overlaps, *(on_gpu if kind == "cuda" else ()))
    promises = {"cuda": size.efficiency[name], "cpu": ANY}
    built = partial(build, model=size.model)
    return Optimization(name, built, promises, dtype="bfloat16", needs=TWO_GPUS, contract=contract)


def _buckets(size: Training, megabytes: int) -> Optimization:
    build, name = partial(rungs.ddp, bucket_cap_mb=megabytes), f"bucket-{megabytes}"
    return replace(_rung(size, name, build, counted_as=name), point=Point("bucket-mb", megabytes))


def _fsdp2(size: Training) -> Optimization:
    """All weights are gathered in bf16 for the forward pass, those of the blocks again for the backward pass, and all
    gradients are scattered in float32. The shares are of one size on 2, 4 and 8 ranks.
    """
    fsdp2 = _rung(
        size,
        "fsdp2",
        rungs.fsdp2,
        waiting=size.hidden,
        memory=MEMORY_OF_SHARES,
        counted_as="fsdp2",
        byte_share=1.5,
        block_share=0.5,
    )
    return replace(fsdp2, tolerance={"bfloat16": WEIGHTS_IN_BF16})


def _ladder(size: Training) -> tuple[Optimization, ...]:
    """The rungs of both sizes."""
    afterwards, hidden = "all-reduce-afterwards", size.hidden
    view = partial(rungs.ddp, gradient_as_bucket_view=True)
    return (
        _rung(size, afterwards, rungs.all_reduce_afterwards, counted_as=afterwards),
        _rung(size, "overlap", rungs.ddp, hidden, NEAR_THE_BUS),
        _rung(size, "bucket-view", view, hidden, NEAR_THE_BUS),
        _rung(size, "bf16-gradients", partial(view, bf16_gradients=True), hidden, byte_share=0.5),
        _rung(size, "static-graph", partial(view, static_graph=True), hidden, NEAR_THE_BUS),
    )


def _workload(name: str, size: Training, *more: Optimization) -> Workload:
    """No yardstick bounds a step, whose gradients cross between GPUs."""
    sizes = {kind: Size(items, flops=0, bytes=0) for kind, items in size.items.items()}
    reference = partial(rungs.no_sync, model=size.model)
    return Workload(f"ddp-scaling/{name}", reference, rungs.batch_number, sizes, (*_ladder(size), *more), cold=False)


MORE_OF_COMPUTE_BOUND = (*(_buckets(COMPUTE_BOUND, megabytes) for megabytes in (1, 5, 25, 100)), _fsdp2(COMPUTE_BOUND))
WORKLOADS: tuple[Workload, ...] = (
    _workload("compute-bound", COMPUTE_BOUND, *MORE_OF_COMPUTE_BOUND),
    _workload("wire-bound", WIRE_BOUND),
)

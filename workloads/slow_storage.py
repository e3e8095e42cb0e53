"""Blocks from a slow storage, and a product with each: one after the other, a block ahead, and four reads at once.

The storage is simulated: every read waits LATENCY_S, as a disk or a network does. A step reads and uses `items` blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import sleep

import torch
from torch import Tensor

from gpugate.workload import Build, Context, Optimization, Side, Size, Workload
from workloads.parts.random_inputs import host_generator

BLOCKS, ROWS, COLUMNS, RESULTS = 64, 256, 1024, 384
LATENCY_S = 0.006  # a seek of a disk
PER_STEP = 8

Read = Callable[[int], Tensor]


def numbers(context: Context, index: int) -> Tensor:
    """Numbers of the blocks of one step: int64 [items]."""
    random = host_generator(context, index)
    return torch.randint(BLOCKS, (context.items,), generator=random)


def one_after_the_other(read: Read, wanted: Iterable[int]) -> Iterator[Tensor]:
    return map(read, wanted)


def _ahead(pool: ThreadPoolExecutor, read: Read, wanted: Iterable[int]) -> Iterator[Tensor]:
    return pool.map(read, wanted)  # begins all reads in order, as many at once as the pool has threads


def _side(threads: int, context: Context) -> Side:
    """The side that reads by so many threads while it computes; 0 reads in place."""
    random = torch.Generator().manual_seed(context.seed)
    stored = torch.randn(BLOCKS, ROWS, COLUMNS, generator=random)
    weights = torch.randn(COLUMNS, RESULTS, generator=random) / COLUMNS**0.5
    pool = ThreadPoolExecutor(threads) if threads else None
    blocks = partial(_ahead, pool) if pool else one_after_the_other

    def read(number: int) -> Tensor:
        sleep(LATENCY_S)
        return stored[number].clone()

    @torch.inference_mode()
    def step(wanted: Tensor) -> Tensor:
        return torch.stack([(block @ weights).square().mean(dim=0) for block in blocks(read, wanted.tolist())])

    return Side(step, close=pool.shutdown if pool else lambda: None)


def _build(threads: int) -> Build:
    return partial(_side, threads)


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "slow-storage",
        _build(0),
        numbers,
        {"cpu": Size(PER_STEP, 2.0 * PER_STEP * ROWS * COLUMNS * RESULTS, 4.0 * PER_STEP * ROWS * COLUMNS)},
        (
            Optimization("prefetch", _build(1), {"cpu": 1.1}),
            Optimization("parallel-reads", _build(4), {"cpu": 1.5}),
        ),
        timing="pipeline",
        cold=False,
    ),
)

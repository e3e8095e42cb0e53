"""Blocks from a slow storage, and a product with each: one after the other, a block ahead, and four reads at once.

The storage is simulated: every read waits LATENCY_S, as a disk or a network does. A step reads and uses `items` blocks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import sleep
from typing import Any

import torch
from torch import Tensor

from gpugate.workload import Context, Optimization, Side, Size, Workload
from workloads.parts.random_inputs import host_generator

BLOCKS, ROWS, COLUMNS, RESULTS = 64, 256, 1024, 384
LATENCY_S = 0.006  # a seek of a disk
PER_STEP = 8


def numbers(context: Context, index: int) -> Tensor:
    """Numbers of the blocks of one step: int64 [items]."""
    random = host_generator(context, index)
    return torch.randint(BLOCKS, (context.items,), generator=random)


def reading(context: Context, threads: int = 0) -> Side:
    """The side that reads by so many threads while it computes, in order; 0 reads in place."""
    random = torch.Generator().manual_seed(context.seed)
    stored = torch.randn(BLOCKS, ROWS, COLUMNS, generator=random)
    weights = torch.randn(COLUMNS, RESULTS, generator=random) / COLUMNS**0.5
    pool = ThreadPoolExecutor(threads) if threads else None
    read_all: Any = pool.map if pool else map

    def read(number: int) -> Tensor:
        sleep(LATENCY_S)
        return stored[number].clone()

    @torch.inference_mode()
    def step(wanted: Tensor) -> Tensor:
        return torch.stack([(block @ weights).square().mean(dim=0) for block in read_all(read, wanted.tolist())])

    return Side(step, close=pool.shutdown if pool else lambda: None)


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "slow-storage",
        reading,
        numbers,
        {"cpu": Size(PER_STEP, 2.0 * PER_STEP * ROWS * COLUMNS * RESULTS, 4.0 * PER_STEP * ROWS * COLUMNS)},
        (
            Optimization("prefetch", partial(reading, threads=1), {"cpu": 1.1}),
            Optimization("parallel-reads", partial(reading, threads=4), {"cpu": 1.5}),
        ),
        timing="pipeline",
        cold=False,
    ),
)

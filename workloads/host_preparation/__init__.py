"""Host preparation of batches by one thread, by several and by worker processes: the cases where workers gain.

A step prepares the samples whose numbers it gets, int64 [items], in batches, and returns a checksum of every prepared
sample, float64 [items]; on CUDA each batch is copied to the device and summed there. No batch is prepared beyond the
step's end, so that every step pays for what it uses.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from gpugate.workload import Contract, Limit, Optimization, Size, Workload
from workloads.host_preparation.preparing import (
    CHEAP,
    EXPENSIVE,
    Preparation,
    one_thread,
    processes,
    sample_numbers,
    threads,
)

CHEAP_BATCHES, EXPENSIVE_BATCHES = 32, 16  # per step


def size(preparation: Preparation, batches: int) -> Size:
    """Bytes: every sample read once as uint8 and written once as float32."""
    items = batches * preparation.batch
    values = [torch.Size(shape).numel() for shape in (preparation.sample_shape, preparation.prepared_shape)]
    return Size(items=items, flops=items * preparation.flops, bytes=float(items * (values[0] + 4 * values[1])))


def _workload(name: str, preparation: Preparation, batches: int, *variants: Optimization) -> Workload:
    work = size(preparation, batches)
    copied = Limit("host_to_device_copies", at_least=batches)
    by_processes, by_threads = Contract((copied,)), Contract((copied, Limit("pageable_copies", at_most=0)))
    return Workload(
        name=name,
        baseline=partial(one_thread, preparation),
        inputs=partial(sample_numbers, preparation),
        sizes={"cuda": work, "cpu": work},
        timing="pipeline",
        cold=False,  # the inputs are numbers of samples
        optimizations=tuple(
            replace(each, contract={"cuda": by_threads if each.name == BY_THREADS else by_processes})
            for each in variants
        ),
    )


HANDING_OVER = (
    "no gain to be had: normalizing a batch of digits takes tens of microseconds, handing it to a worker and back as "
    "long"
)
TWO_MESSAGES = f"{HANDING_OVER}; each batch costs two messages, two switches of process and a copy of its own"
SPREAD = (
    "a picture takes a thousand times as long as a message about it: workers share the work, as far as cores go; two "
    "cores that others use too promise no gain"
)
SHARED_CORES = "the host's cores, which others use too, decide how fast the workers prepare"

H100 = "nvidia-h100-80gb-hbm3"
BY_THREADS, BY_TWO, BY_FOUR = "threads-4", "processes-2", "processes-4"

WORKLOADS: tuple[Workload, ...] = (
    _workload(
        "host-preparation-cheap",
        CHEAP,
        CHEAP_BATCHES,
        Optimization(BY_THREADS, partial(threads, CHEAP, 4), {"sm_90": 0.63, "cuda": 0.2}, why=HANDING_OVER),
        Optimization(BY_TWO, partial(processes, CHEAP, 2), {"sm_90": 0.85, "cuda": 0.2, "cpu": 0.15}, why=TWO_MESSAGES),
        Optimization(BY_FOUR, partial(processes, CHEAP, 4), {"sm_90": 0.85, "cuda": 0.2}, why=TWO_MESSAGES),
    ),
    _workload(
        "host-preparation-expensive",
        EXPENSIVE,
        EXPENSIVE_BATCHES,
        Optimization(
            BY_THREADS,
            partial(threads, EXPENSIVE, 4),
            {H100: 2.2, "sm_90": 1.95, "cuda": 1.0, "cpu": 0.4},
            why=SPREAD,
        ),
        Optimization(
            BY_TWO,
            partial(processes, EXPENSIVE, 2),
            {H100: 1.55, "sm_90": 1.35, "cuda": 1.0, "cpu": 0.4},
            why=SPREAD,
            min_speedup_why=SHARED_CORES,
        ),
        Optimization(BY_FOUR, partial(processes, EXPENSIVE, 4), {H100: 2.9, "sm_90": 2.4, "cuda": 1.0}, why=SPREAD),
    ),
)

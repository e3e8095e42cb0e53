"""The work of a step in a block: a side that leaves steps out does a fraction of the work of a step by itself."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Collection, Sequence
from contextlib import suppress
from time import clock_gettime_ns, process_time_ns
from typing import Any

from gpugate.machine.processes import list_descendants
from gpugate.measurement.counters import kernels_by_join
from gpugate.measurement.sides import BuiltSide, blame
from gpugate.measurement.step_checks import CHECKED_SHARE
from gpugate.workload import nothing_to_join

JOINED_STEPS, FEWEST_JOINED, MOST_JOINED = 8, 4, 4096  # as many on each of HOT_SETS input sets
JOINED_ROUNDS = 3
TOLD_MS = 4.0  # of CPU time, for steps that are joined one by one: noise is then a small part
WAKE_MS, LEAST_ALONE_SHARE = 0.04, 0.2  # the most CPU time to wake a worker for one step, and the least that is work


def block_work_share(side: BuiltSide, inputs: Sequence[Any], budget_s: float, step_ms: float) -> float | None:
    """Measures the work of a step in a block that is joined once, over the work of a step that is joined by itself.

    Work is the CPU time of this process and its workers, on a GPU the number of kernels and copies, both without the
    cost of an empty join. A side that computes only some of a block's steps, in `finish` or on a thread, does a
    fraction of the work. To wake a worker for a single step may cost WAKE_MS, but no more than the rest of
    LEAST_ALONE_SHARE. None for a side that has nothing to join or works ahead. Raises SideError for a step that fails.
    """
    if side.side.works_ahead or side.side.stock_steps or side.side.finish is nothing_to_join:
        return None
    fitting = int(1e3 * CHECKED_SHARE * budget_s / (2 * JOINED_ROUNDS * step_ms))
    steps, rounds = (JOINED_STEPS, JOINED_ROUNDS) if fitting >= JOINED_STEPS else (FEWEST_JOINED, 1)
    if side.device.type == "cuda":
        with blame(side.name, "running steps one by one and in a block"):
            counted = kernels_by_join(side, inputs, steps)  # cuda only
        alone, block, join = (count / steps for count in counted)  # cuda only
        return max(0.0, block - join / steps) / (alone - join) if alone > join else None  # cuda only
    workers = list_descendants()

    def cpu_ms(lengths: Sequence[int]) -> float:
        return _cpu_ms(side, inputs, lengths, workers)

    most = steps if side.restore is not None else min(fitting, MOST_JOINED)  # a set is not written to for long
    while 4 * steps <= most and cpu_ms([1] * steps) < TOLD_MS:
        steps *= 4
    found = [[cpu_ms(lengths) for lengths in ([1] * steps, [steps], [0] * steps)] for _ in range(rounds)]
    alone_ms, block_ms, join_ms = (statistics.median(column) / steps for column in zip(*found, strict=True))
    step_ms = max(alone_ms - join_ms - WAKE_MS, LEAST_ALONE_SHARE * (alone_ms - join_ms))
    return max(0.0, block_ms - join_ms / steps) / step_ms if step_ms > 0 else None


def _cpu_ms(side: BuiltSide, inputs: Sequence[Any], lengths: Sequence[int], workers: Collection[int]) -> float:
    """Measures the CPU time of blocks of these lengths; a block of no steps is a join alone."""
    with blame(side.name, "running steps one by one and in a block"):
        side.flags.apply()
        started = process_time_ns() + worker_cpu_ns(workers)
        for length in lengths:
            side.run_steps(inputs, length)
        return max(0.0, (process_time_ns() + worker_cpu_ns(workers) - started) / 1e6)


def worker_cpu_ns(workers: Collection[int]) -> int:
    """Sums the CPU time of running worker processes, and of all child processes that have ended, in nanoseconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total_ns = round(1e9 * (ended.ru_utime + ended.ru_stime))
    for worker in workers:
        with suppress(OSError):  # it has ended since
            total_ns += clock_gettime_ns((~worker << 3) | 2)  # Linux's CPU clock of another process
    return total_ns

"""The work of a step in a block: a side that leaves steps out does a fraction of the work of a step by itself."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from threading import active_count
from time import process_time_ns
from typing import Any

from gpugate.machine.processes import list_descendants, worker_cpu_ns
from gpugate.measurement.counters import kernels_by_join
from gpugate.measurement.sides import BuiltSide, blame, synchronize
from gpugate.measurement.step_checks import CHECKED_SHARE, run_block, without_overwritten
from gpugate.workload import nothing_to_join

JOINED_GROUPS, FEWEST_GROUPS, MOST_GROUPS = 8, 4, 4096  # as many on each of HOT_SETS input sets
JOINED_ROUNDS = 3
LONGEST_BLOCK = {"cpu": 100_000, "cuda": 512}  # steps; a timed block shows each gain of more than twice
MOST_KEPT = 64  # outputs that a side can keep in memory of its own and overwrite all the same
TOLD_MS = 4.0  # of CPU time, for groups that are joined one by one: noise is then a small part
WAKE_MS, LEAST_ALONE_SHARE = 0.04, 0.2  # the most CPU time to wake a worker for a group, and the least that is work


def block_work_share(side: BuiltSide, inputs: Sequence[Any], budget_s: float, step_ms: float) -> float | None:
    """Measures the work of a step in a block that is joined once, over its work in groups that are joined one by one.

    A group has as many steps as the side keeps outputs apart: one for a single buffer, and whole batches for a side
    that computes batches into a ring of buffers. Work is the CPU time of this process and its workers, on a GPU the
    number of kernels and copies, both without the cost of an empty join. A side that computes only some of a block's
    steps, in `finish` or on a thread, does a fraction of the work. To wake the workers for a group may cost WAKE_MS for
    each thread, but no more than the rest of LEAST_ALONE_SHARE. None for a side that has nothing to join or works
    ahead. Raises SideError for a step that fails.
    """
    if side.side.works_ahead or side.side.stock_steps or side.side.finish is nothing_to_join:
        return None
    side.next_input, size = 0, _count_kept(side, inputs)
    longest = LONGEST_BLOCK[side.device.type] if side.restore is None else 0
    fitting = int(1e3 * CHECKED_SHARE * budget_s / (2 * JOINED_ROUNDS * step_ms * size))
    groups, rounds = (JOINED_GROUPS, JOINED_ROUNDS) if fitting >= JOINED_GROUPS else (FEWEST_GROUPS, 1)
    if side.device.type == "cuda":
        with blame(side.name, "running steps in groups and in a block"):
            steps = max(size * groups, min(side.steps_per_block, longest))  # cuda only
            alone, block, join = kernels_by_join(side, inputs, [size] * groups, steps)  # cuda only
        return _share(alone / groups, block * size / steps, join / groups)  # cuda only
    workers = list_descendants()

    def cpu_ms(lengths: Sequence[int]) -> float:
        return _cpu_ms(side, inputs, lengths, workers)

    most = groups if side.restore is not None else min(fitting, MOST_GROUPS)  # a set is not written to for long
    while 4 * groups <= most and cpu_ms([size] * groups) < TOLD_MS:
        groups *= 4
    steps = max(size * groups, min(side.steps_per_block, longest))
    found = [[cpu_ms(each) for each in ([size] * groups, [steps], [0] * groups)] for _ in range(rounds)]
    alone_ms, block_ms, join_ms = map(statistics.median, zip(*found, strict=True))
    return _share(alone_ms / groups, block_ms * size / steps, join_ms / groups, WAKE_MS * active_count())


def _share(alone: float, block: float, join: float, wake: float = 0.0) -> float | None:
    """Divides the work of a group in a block by that of a group that is joined by itself; None where that is 0. An
    empty join may cost more than one that has work, so at most half of the work of a group counts as join."""
    work = alone - min(join, alone / 2)
    work = max(work - wake, LEAST_ALONE_SHARE * work)
    return block / work if work > 0 else None


def _count_kept(side: BuiltSide, inputs: Sequence[Any]) -> int:
    """Counts the last outputs of a block that share no memory with each other, up to MOST_KEPT."""
    outputs: list[Any] = []
    count = 2 * MOST_KEPT if side.restore is None else len(inputs)
    with blame(side.name, "running steps in groups and in a block"):
        side.flags.apply()
        run_block(side, [inputs[number % len(inputs)] for number in range(count)], outputs)
        synchronize(side.device)
    kept = without_overwritten(outputs, range(count - 1, max(0, count - MOST_KEPT) - 1, -1))
    return next((number for number, place in enumerate(kept) if place != count - 1 - number), len(kept))


def _cpu_ms(side: BuiltSide, inputs: Sequence[Any], lengths: Sequence[int], workers: Collection[int]) -> float:
    """Measures the CPU time of blocks of these lengths; a block of no steps is a join alone."""
    with blame(side.name, "running steps in groups and in a block"):
        side.flags.apply()
        started = process_time_ns() + worker_cpu_ns(workers)
        for length in lengths:
            side.run_steps(inputs, length)
        return max(0.0, (process_time_ns() + worker_cpu_ns(workers) - started) / 1e6)

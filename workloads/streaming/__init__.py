"""Streams from disk through RAM to the device and back: regimes in which a pipeline gains, and one where it cannot.

A step streams a fixed number of blocks, float32 [rows, points], in the order of its input. Sequential time is the sum
of the stages, pipelined time their maximum, so the gain of a pipeline depends on the longest stage: one workload for
each regime. Reading a block is a copy out of the page cache; every thread reads a few GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gpugate.workload import Build, Contract, DeviceKind, Limit, Optimization, Point, Size, Workload
from workloads.streaming import sides
from workloads.streaming.blocks import Regime
from workloads.streaming.sides import Regimes, at_once, read_by_threads

# Compute is the longest stage as soon as a team reads and several threads check. Times per block of 16 MiB on an H200,
# about: 1.3 ms in fourteen matrix products; 3 ms to read and 1 ms to check on one thread each; 0.7 ms to copy in and 1
# ms out while pageable, 0.3 ms while page-locked. Two readers with a team of five threads each read a block in 0.96 to
# 1.0 ms, depending on other users of the host's memory: with ten products, which take 0.9 ms, the device waited for
# some blocks. 512 MiB on disk, 256 MiB of buffers in RAM. On a CPU, which reads a block of 4 MiB within 0.2 ms,
# products of 16 points take 0.9 ms and the check 0.7 ms.
COMPUTE: Regimes = {
    "cuda": Regime(rows=8192, points=512, blocks=32, rounds=7, buffers=8, readers=2, consumers=4, team=5),
    "cpu": Regime(rows=65536, points=16, blocks=16, rounds=1, buffers=4, readers=1, consumers=1),
}
# The copy in is the longest stage: 32 MiB take 0.6 ms, their checksum on the device 0.03 ms, and 16 bytes come back.
# Reading at 55 GB/s beside a bus of the same rate is bounded by memory: twelve threads that read into 512 MiB of
# buffers reached 34 GB/s, and 61 % of the bus. So the buffers fit in the L3 cache, where the bus finds the block that
# was just read; there, waiting for Python's lock cost many readers as much as memory had. Four readers with a team of
# three threads each reached 95 % (results/lessons.md). 1 GiB on disk, 128 MiB of buffers.
COPY: Regimes = {
    "cuda": Regime(rows=8192, points=1024, blocks=32, rounds=0, buffers=4, readers=4, consumers=2, pieces=2, team=3)
}
# 386 products of a block of 2 MiB take about 14 ms, everything else less than 1 ms.
LONG_COMPUTE: Regimes = {
    "cuda": Regime(rows=512, points=1024, blocks=32, rounds=193, buffers=4, readers=1, consumers=1),
    "cpu": Regime(rows=512, points=64, blocks=64, rounds=31, buffers=4, readers=1, consumers=1),
}
Items = Mapping[DeviceKind, int]
COMPUTE_ITEMS: Items = {"cuda": 32, "cpu": 8}
COPY_ITEMS: Items = {"cuda": 64}  # a step begins with idle readers: it must last many times as long as reading a block
RESIDENT_ITEMS: Items = {"cuda": 32}
LONG_COMPUTE_ITEMS: Items = {"cuda": 4, "cpu": 8}


def size(regime: Regime, items: int) -> Size:
    """The work of a step: the FLOPs of the products alone, and the bytes of blocks and results that cross the bus."""
    block_bytes = 4 * regime.rows * regime.points
    ways = 2 if regime.rounds else 1
    return Size(items=items, flops=items * regime.flops, bytes=float(items * ways * block_bytes))


PINNED = Limit("pageable_copies", at_most=0)


def _copied(blocks: int) -> tuple[Limit, ...]:
    """Limits that every block and every result crossed the bus, from and to page-locked memory."""
    return PINNED, Limit("host_to_device_copies", at_least=blocks), Limit("device_to_host_copies", at_least=blocks)


def _overlapped(regimes: Regimes, blocks: int) -> tuple[Limit, ...]:
    kernels = Limit("kernels", at_least=blocks * 2 * max(1, regimes["cuda"].rounds))
    return (*_copied(blocks), kernels, Limit("streams", at_least=3))


def _contract(engaged: tuple[Limit, ...], limits: tuple[Limit, ...] = ()) -> Mapping[str, Contract]:
    """`engaged` on every GPU; `limits` on an H200, for which the sizes of the stages were chosen."""
    return {"sm_90": Contract(engaged, limits), "cuda": Contract(engaged)}


# The GPU of the sequential stream is idle for more than half of the time: 0.41 of it was active on an H200.
ALWAYS_BUSY = (
    Limit("active_fraction", at_least=0.95),
    Limit("active_fraction", at_least_of_reference=2.0),
)
# A host without other users of its memory reached 90 to 95 %, and 49 to 74 % beside other processes: reading at 55 GB/s
# is bounded by the shared memory (results/lessons.md).
BUSY_BUS = Limit("bus_share", at_least=0.45)
# Of the copies' time, a sequential stream hides nothing and one with two buffers 0.04 to 0.18. The pipeline hid 0.47 to
# 0.94: the less, the slower its host reads.
HIDDEN_COPIES = Limit("overlap_fraction", at_least=0.3)
SPEEDUP_BY_BUFFERS = {1: 1.73, 2: 3.4, 3: 4.5, 4: 5.5, 8: 5.85}  # at least, on sm_90
BY_HOST = "the reference reads and copies as fast as the host: processes of an H200 left 5.9x to 8.6x"


def _with_buffers(count: int) -> Optimization:
    return Optimization(
        f"buffers-{count}",
        partial(at_once, COMPUTE, buffers=count),
        {"sm_90": SPEEDUP_BY_BUFFERS[count], "cuda": 0.9},
        contract=_contract(_copied(COMPUTE_ITEMS["cuda"])),
        point=Point("buffers", count),
        why="with fewer buffers than stages, a stage waits for a buffer that another one still holds",
        min_speedup_why=BY_HOST if count == max(SPEEDUP_BY_BUFFERS) else "",
    )


def _workload(name: str, baseline: Build, regimes: Regimes, items: Items, *optimizations: Optimization) -> Workload:
    return Workload(
        name=name,
        baseline=baseline,
        inputs=partial(sides.block_numbers, regimes),
        sizes={kind: size(regimes[kind], count) for kind, count in items.items()},
        timing="pipeline",
        cold=False,  # the inputs are numbers of blocks; the blocks themselves are read anew in every step
        optimizations=optimizations,
    )


STREAMING_COMPUTE = _workload(
    "streaming-compute",
    partial(sides.in_a_row, COMPUTE, False),
    COMPUTE,
    COMPUTE_ITEMS,
    Optimization(
        "pinned",
        partial(sides.in_a_row, COMPUTE, True),
        {"sm_90": 1.4, "cuda": 1.0},
        contract=_contract(_copied(COMPUTE_ITEMS["cuda"])),
        why="page-locked copies are two to three times faster, but reading and checking stay as they are",
    ),
    Optimization(
        "reader-threads",
        partial(read_by_threads, COMPUTE),
        {"sm_90": 2.45, "cuda": 1.1},
        contract=_contract(_copied(COMPUTE_ITEMS["cuda"])),
        why="reading is hidden; copying, computing and checking still wait for each other",
    ),
    Optimization(
        "pipelined",
        partial(at_once, COMPUTE),
        {"sm_90": 5.4, "cuda": 1.5, "cpu": 0.4},
        contract=_contract((*_overlapped(COMPUTE, COMPUTE_ITEMS["cuda"]), HIDDEN_COPIES), ALWAYS_BUSY),
        why="five stages at once take the time of the longest, which is the compute; on a CPU they share its cores, "
        "and two cores that others use too promise no gain",
        min_speedup_why=BY_HOST,
    ),
    *map(_with_buffers, SPEEDUP_BY_BUFFERS),
)

STREAMING_COPY = _workload(
    "streaming-copy",
    partial(sides.in_a_row, COPY, False),
    COPY,
    COPY_ITEMS,
    Optimization(
        "pipelined",
        partial(at_once, COPY),
        {"sm_90": 8.0, "cuda": 1.2},
        contract=_contract(_overlapped(COPY, COPY_ITEMS["cuda"]), (BUSY_BUS,)),
        why="reading, on many threads, hides behind the copy in",
    ),
)

STREAMING_RESIDENT = _workload(
    "streaming-resident",
    partial(sides.resident_in_a_row, COMPUTE),
    COMPUTE,
    RESIDENT_ITEMS,
    Optimization(
        "pipelined",
        partial(sides.resident_at_once, COMPUTE),
        {"sm_90": 0.97, "cuda": 0.9},
        contract=_contract((Limit("streams", at_least=2),)),
        why="the data is on the GPU already: there is no copy to hide, and a pipeline adds copies of its own",
    ),
)

STREAMING_LONG_COMPUTE = _workload(
    "streaming-long-compute",
    partial(sides.in_a_row, LONG_COMPUTE, False),
    LONG_COMPUTE,
    LONG_COMPUTE_ITEMS,
    Optimization(
        "pipelined",
        partial(at_once, LONG_COMPUTE),
        {"sm_90": 0.97, "cuda": 0.9, "cpu": 0.6},
        contract=_contract(_overlapped(LONG_COMPUTE, LONG_COMPUTE_ITEMS["cuda"])),
        why="compute takes twenty times as long as all other stages: hiding those gains a few percent at most",
    ),
)

WORKLOADS: tuple[Workload, ...] = (STREAMING_COMPUTE, STREAMING_COPY, STREAMING_RESIDENT, STREAMING_LONG_COMPUTE)

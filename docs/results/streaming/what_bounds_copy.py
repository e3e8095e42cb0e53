"""What bounds `streaming-copy`: the bus, the memory, or Python? Stand-alone; run it from the repository's root.

    python docs/results/streaming/what_bounds_copy.py               # table (about 50 s), then grid (about 70 s)
    python docs/results/streaming/what_bounds_copy.py --only grid
    python docs/results/streaming/what_bounds_copy.py --cpu         # in miniature: shows that it runs, not what bounds

Table: reading from the page cache into page-locked memory by T threads, alone and beside a busy bus. `preadv` reads
with T threads of Python, `mapped` copies from a mapping with them, `team` is one thread whose copies OpenMP divides
among T. hot: every thread fills 4 MiB over and over (a team 48 MiB); cold: 64 MiB each (1 GiB).
Grid: the project's own pipelined side, step by step as the engine times it. `no read` is the same with reads left out:
what the bus and Python alone would allow. A row far below its `no read` waits for memory; a `no read` below 0.95 waits
for Python or launches.
Everything goes to what_bounds_copy.json too, after every section.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import shutil
import statistics
import sys
import threading
import time
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path.cwd()))
warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writ")
MIB, GB = 2**20, 1e9
parser = argparse.ArgumentParser()
parser.add_argument("--cpu", action="store_true")
parser.add_argument("--only", choices=("table", "grid"))
parser.add_argument("--point-s", type=float, default=None, help="seconds per point of the table")
parser.add_argument("--budget-s", type=float, default=75.0, help="the grid starts no point after so long")
parser.add_argument("--out", type=Path, default=Path(".gpugate-cache"), help="folder of the JSON file")
arguments = parser.parse_args()
CPU = arguments.cpu
POINT_S = arguments.point_s or (0.05 if CPU else 0.33)
DEVICE = torch.device("cpu" if CPU else "cuda")
SCALE = 16 if CPU else 1  # divides sizes
CALL = 4 * MIB // SCALE
FOLDER = Path(".gpugate-cache", f"what-bounds-copy-{os.getpid()}")  # where the suite's own files lie
OUT = arguments.out
FOUND: dict[str, object] = {}
BEGAN = time.perf_counter()


def keep(section: str, value: object) -> None:
    FOUND[section] = value
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "what_bounds_copy.json").write_text(json.dumps(FOUND, indent=1))


def say(*words: object) -> None:
    print(f"[{time.perf_counter() - BEGAN:5.1f} s]", *words, flush=True)


def pinned_bytes(count: int) -> torch.Tensor:
    memory = torch.empty(count, dtype=torch.uint8, pin_memory=not CPU)
    chunk = torch.from_numpy(np.random.default_rng(1).integers(0, 256, 16 * MIB // SCALE, np.uint8))
    for begin in range(0, count, chunk.numel()):
        memory[begin : begin + chunk.numel()] = chunk[: count - begin]
    return memory


def synchronize() -> None:
    if not CPU:
        torch.cuda.synchronize()


def first_line(path: str, begins: str) -> str:
    try:
        return next((line.split(":", 1)[-1].strip() for line in Path(path).open() if line.startswith(begins)), "?")
    except OSError as error:
        return str(error)


def read_text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "?"


def facts() -> dict[str, object]:
    mounts = [line.split() for line in read_text("/proc/mounts").splitlines()]
    here = str(FOLDER.parent.resolve())
    mount = max((each for each in mounts if len(each) > 2 and here.startswith(each[1])), key=lambda each: len(each[1]))
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": first_line("/proc/cpuinfo", "model name"),
        "affinity": len(os.sched_getaffinity(0)),
        "memory": first_line("/proc/meminfo", "MemTotal"),
        "L3": read_text("/sys/devices/system/cpu/cpu0/cache/index3/size"),
        "L3_shared_by": read_text("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list"),
        "threads_of_core_0": read_text("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list"),
        "numa": read_text("/sys/devices/system/node/online"),
        "huge_pages": read_text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "file_system": " ".join(mount[:3]),
        "torch_threads": torch.get_num_threads(),
        "gpu": "none" if CPU else torch.cuda.get_device_name(),
    }


# ---- the bus -------------------------------------------------------------------------------------------------------
def bus_rate(host: torch.Tensor, call: int, streams: int, into_device: bool) -> float:
    """GB/s of copies of `call` bytes through a pool that no cache holds."""
    device = torch.empty(64 * MIB // SCALE * 2, dtype=torch.uint8, device=DEVICE)
    lanes = [None if CPU else torch.cuda.Stream() for _ in range(streams)]
    count, places = max(2, 1024 * MIB // SCALE // call), host.numel() // call
    offsets = [number % places * call for number in range(count)]

    def go() -> None:
        for number, offset in enumerate(offsets):
            ours = (
                device[(number % 2) * call : (number % 2) * call + call]
                if 2 * call <= device.numel()
                else device[:call]
            )
            lane = lanes[number % streams]
            with lane if lane is not None else nullcontext():
                if into_device:
                    ours.copy_(host[offset : offset + call], non_blocking=True)
                else:
                    host[offset : offset + call].copy_(ours, non_blocking=True)
        synchronize()

    go()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        go()
        times.append(time.perf_counter() - began)
    return len(offsets) * call / min(times) / GB


class Hog:
    """Keeps the bus busy one way, from page-locked memory of its own."""

    def __init__(self, into_device: bool) -> None:
        self.host = pinned_bytes(256 * MIB // SCALE)
        self.call = 32 * MIB // SCALE
        self.device = torch.empty(self.call, dtype=torch.uint8, device=DEVICE)
        self.into_device, self.bytes, self.stop = into_device, 0, False

    def __enter__(self) -> Hog:
        self.stop, self.bytes = False, 0
        self.thread = threading.Thread(target=self.go)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop = True
        self.thread.join()

    def go(self) -> None:
        stream = None if CPU else torch.cuda.Stream()
        events = [None if CPU else torch.cuda.Event(blocking=True) for _ in range(4)]
        turn = 0
        while not self.stop:
            begin = (turn * self.call) % self.host.numel()
            part = self.host[begin : begin + self.call]
            event = events[turn % 4]
            if event is not None:
                event.synchronize()
            with stream if stream is not None else nullcontext():
                if self.into_device:
                    self.device.copy_(part, non_blocking=True)
                else:
                    part.copy_(self.device, non_blocking=True)
            if event is not None:
                event.record(stream)
            self.bytes += self.call
            turn += 1
        synchronize()


def latencies() -> dict[str, float]:
    if CPU:
        return {}
    host, device, stream = pinned_bytes(MIB), torch.empty(MIB, dtype=torch.uint8, device=DEVICE), torch.cuda.Stream()

    def median_us(run, count: int = 200) -> float:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        synchronize()
        return 1e6 * statistics.median(times)

    small, tiny = device[:64], host[:64]
    blocking, spinning = torch.cuda.Event(blocking=True), torch.cuda.Event()

    def copy_and_wait(event) -> None:
        with stream:
            small.copy_(tiny, non_blocking=True)
        event.record(stream)
        event.synchronize()

    def enqueue() -> None:
        with stream:
            small.copy_(tiny, non_blocking=True)

    block = torch.zeros(1024, 1024, device=DEVICE)
    return {
        "enqueue_copy_us": median_us(enqueue),
        "record_us": median_us(lambda: blocking.record(stream)),
        "copy_and_blocking_wait_us": median_us(lambda: copy_and_wait(blocking)),
        "copy_and_spinning_wait_us": median_us(lambda: copy_and_wait(spinning)),
        "launch_checksum_us": median_us(lambda: block.view(torch.int64).sum(0).view(2, -1).sum(1)),
    }


# ---- reading -------------------------------------------------------------------------------------------------------
def make_file(path: Path, count: int) -> None:
    chunk = np.random.default_rng(2).integers(0, 256, 64 * MIB // SCALE, np.uint8)
    with path.open("wb") as file:
        for _ in range(count // chunk.nbytes):
            file.write(chunk.data)


def read_rate(kind: str, threads: int, hot: bool, source, pool: torch.Tensor, beside: list[Hog]) -> dict[str, float]:
    """GB/s read, and what the hogs carried meanwhile."""
    descriptor, mapped = source
    if kind == "team":
        torch.set_num_threads(threads)
        streams, call, own = 1, 2 * CALL, (12 * CALL if hot else pool.numel() // (2 * CALL) * 2 * CALL)
    else:
        torch.set_num_threads(1)
        streams, call, own = threads, CALL, (CALL if hot else 16 * CALL)
    counted, stop, ready = [0] * streams, [False], threading.Barrier(streams + 1)

    def go(index: int) -> None:
        mine = pool[index * own : (index + 1) * own]
        views = [(part, part.numpy().data) for part in mine.split(call)]
        offset = mapped.numel() // streams // call * call * index
        ready.wait()
        turn = 0
        while not stop[0]:
            part, view = views[turn % len(views)]
            if kind == "preadv":
                os.preadv(descriptor, [view], offset)
            else:
                part.copy_(mapped[offset : offset + call])
            offset = (offset + call) % mapped.numel()
            counted[index] += call
            turn += 1

    workers = [threading.Thread(target=go, args=(index,)) for index in range(streams)]
    for hog in beside:
        hog.__enter__()
    for worker in workers:
        worker.start()
    ready.wait()
    time.sleep(0.15 * POINT_S)
    before, hogged, began = sum(counted), [hog.bytes for hog in beside], time.perf_counter()
    time.sleep(POINT_S)
    seconds = time.perf_counter() - began
    read, carried = sum(counted) - before, [hog.bytes - was for hog, was in zip(beside, hogged, strict=True)]
    stop[0] = True
    for worker in workers:
        worker.join()
    for hog in beside:
        hog.__exit__()
    return {"read": read / seconds / GB, **{f"bus{number}": each / seconds / GB for number, each in enumerate(carried)}}


def table() -> None:
    pool = pinned_bytes(1024 * MIB // SCALE)
    say("the bus, GB/s, by size of a copy (MiB), one stream and two")
    rates = {}
    for size in (1, 2, 4, 8, 16, 32, 64):
        call = size * MIB // SCALE
        rates[size] = {f"in_{n}_streams": bus_rate(pool, call, n, True) for n in (1, 2)}
        rates[size]["out"] = bus_rate(pool, call, 1, False)
        say(f"  {size:3} MiB  " + "  ".join(f"{name} {rate:6.1f}" for name, rate in rates[size].items()))
    small = {n: bus_rate(pool[: n * MIB // SCALE], 8 * MIB // SCALE, 1, True) for n in (24, 48, 96, 192)}
    say("  8 MiB out of a pool of MiB: " + "  ".join(f"{n}: {rate:.1f}" for n, rate in small.items()))
    hogs = Hog(True), Hog(False)
    with hogs[0], hogs[1]:
        time.sleep(0.1)
        was, began = [hog.bytes for hog in hogs], time.perf_counter()
        time.sleep(max(0.3, POINT_S))
        both = [(hog.bytes - b) / (time.perf_counter() - began) / GB for hog, b in zip(hogs, was, strict=True)]
    say(f"  both ways at once: in {both[0]:.1f}, out {both[1]:.1f}")
    waits = latencies()
    say("  " + ", ".join(f"{name} {us:.1f}" for name, us in waits.items()))
    keep("bus", {"by_mib": rates, "by_pool_mib": small, "in_and_out": both, "latencies": waits})

    path = FOLDER / "bytes"
    make_file(path, 2048 * MIB // SCALE)
    descriptor = os.open(path, os.O_RDONLY)
    began = time.perf_counter()
    mapping = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
    source = descriptor, torch.frombuffer(mapping, dtype=torch.uint8)
    say(f"a file of {path.stat().st_size / MIB:.0f} MiB, mapped in {time.perf_counter() - began:.2f} s")
    for hot in (True, False):  # pages that were never touched do not count
        read_rate("mapped", 4, hot, source, pool, [])
    rows = []
    say("reading, GB/s: alone | beside in (in) | beside in and out (in, out)")
    counts = {"preadv": (1, 2, 4, 8, 12, 16), "mapped": (1, 2, 4, 8, 12, 16), "team": (4, 8, 12, 16)}
    for kind, threads in counts.items():
        for hot in (True, False):
            for count in threads:
                alone = read_rate(kind, count, hot, source, pool, [])
                into = read_rate(kind, count, hot, source, pool, [hogs[0]])
                ways = read_rate(kind, count, hot, source, pool, list(hogs))
                rows.append({"kind": kind, "threads": count, "hot": hot, "alone": alone, "in": into, "both": ways})
                say(
                    f"  {kind:6} {count:2} {'hot ' if hot else 'cold'}  {alone['read']:6.1f} | "
                    f"{into['read']:6.1f} ({into['bus0']:5.1f}) | "
                    f"{ways['read']:6.1f} ({ways['bus0']:5.1f}, {ways['bus1']:5.1f})"
                )
            keep("reading", rows)
    os.close(descriptor)


# ---- the project's pipeline ----------------------------------------------------------------------------------------
@contextmanager
def patched(owner, name: str, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield before
    finally:
        setattr(owner, name, before)


def grid() -> None:
    from gpugate.workload import Context
    from workloads.streaming import COPY, block_numbers
    from workloads.streaming.stream_device import StagedDevice
    from workloads.streaming.stream_file import StreamFile
    from workloads.streaming.stream_sides import at_once

    began_grid = time.perf_counter()
    yardstick = bus_rate(pinned_bytes(1024 * MIB // SCALE), 128 * MIB // SCALE // 2, 1, True)
    keep("yardstick", yardstick)
    say(f"shares are of {yardstick:.1f} GB/s; MiB a block, buffers, readers, pieces, OpenMP threads (0: preadv)")
    mappings: dict[Path, torch.Tensor] = {}

    def mapped_read(file: StreamFile, number: int, buffer: torch.Tensor) -> None:
        if file.path not in mappings:
            mapping = mmap.mmap(file._descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
            mappings[file.path] = torch.frombuffer(mapping, dtype=torch.float32)
        count = buffer.numel()
        buffer.view(-1).copy_(mappings[file.path][number * count : (number + 1) * count])

    def one(
        label: str,
        mib: int,
        buffers: int,
        readers: int,
        pieces: int,
        threads: int = 0,
        consumers: int = 2,
        ceiling_too: bool = False,
    ) -> None:
        if time.perf_counter() - began_grid > arguments.budget_s:
            say(f"  {label}: no time left")
            return
        blocks, items = 1024 // mib, 4096 // mib
        regime = replace(
            COPY["cuda"],
            rows=mib * 256 // SCALE,
            points=1024,
            blocks=blocks,
            rounds=0,
            buffers=buffers,
            readers=readers,
            pieces=pieces,
            consumers=consumers,
        )
        torch.set_num_threads(threads or 1)
        context = Context(DEVICE, items=items if not CPU else 8, seed=3, cache_dir=FOLDER)
        regimes = {"cuda": regime, "cpu": regime}
        inputs = [block_numbers(regimes, context, index) for index in range(4)]
        spent = {"read": [], "submit": []}

        def timed(name: str, run):
            def watched(*given):
                began = time.perf_counter()
                try:
                    return run(*given)
                finally:
                    spent[name].append(time.perf_counter() - began)

            return watched

        def run(read) -> tuple[float, float]:
            """Share of the bus, median of three windows of 3 steps, after one step in stock; seconds of a window."""
            with (
                patched(StreamFile, "read_into", timed("read", read)),
                patched(StagedDevice, "submit", timed("submit", StagedDevice.submit)),
            ):
                side = at_once(regimes, context)
                try:
                    outputs, times = [], []
                    side.step(inputs[0])
                    side.finish()
                    spent["read"].clear(), spent["submit"].clear()
                    for _ in range(3 if not CPU else 1):
                        side.step(inputs[0])
                        synchronize()
                        began = time.perf_counter()
                        outputs = [side.step(each) for each in inputs[1:]]
                        side.finish()
                        times.append(time.perf_counter() - began)
                    right = all(bool((each[:, 0] == 1).all()) for each in outputs)
                    if not (right or read is nothing):
                        raise SystemExit(f"{label}: blocks came back wrong")
                finally:
                    side.close()
            seconds = statistics.median(times)
            return 3 * context.items * 4 * regime.rows * regime.points / seconds / GB / yardstick, sum(times) * 4 / 3

        share, wall = run(mapped_read if threads else StreamFile.read_into)
        piece = 4 * regime.rows * regime.points / pieces
        thread_gb_s = piece / statistics.median(spent["read"]) / GB
        reading = sum(spent["read"]) / wall / readers
        submit_us = 1e6 * statistics.median(spent["submit"]) if spent["submit"] else 0.0
        ceiling = run(nothing)[0] if ceiling_too else float("nan")
        row = {
            "label": label,
            "mib": mib,
            "buffers": buffers,
            "readers": readers,
            "pieces": pieces,
            "threads": threads,
            "share": share,
            "no_read": ceiling if ceiling_too else None,
            "thread_gb_s": thread_gb_s,
            "reading": reading,
            "submit_us": submit_us,
        }
        rows.append(row)
        keep("grid", rows)
        say(
            f"  {label:12} {mib:3} {buffers:3} {readers:3} {pieces:3} {threads:3}  share {share:.3f}"
            f"  no read {ceiling:.3f}"
            f"  a read {thread_gb_s:5.1f} GB/s  readers read {reading:4.0%} of the time  submit {submit_us:4.0f} us"
        )

    def nothing(*_: object) -> None:
        pass

    rows: list[dict[str, object]] = []
    one("new", 64, 8, 12, 4, ceiling_too=True)
    one("before", 64, 18, 14, 1)
    one("new", 64, 8, 14, 4)
    one("new", 64, 8, 10, 4)
    one("finer", 64, 8, 12, 8)
    one("one consumer", 64, 8, 12, 4, consumers=1)
    one("short ring", 64, 4, 12, 8)
    one("mapped", 64, 8, 12, 4, 1)
    one("team", 64, 3, 1, 1, 12)
    one("team", 64, 4, 2, 1, 6)
    one("hot", 32, 3, 12, 8, ceiling_too=True)
    one("hot team", 32, 3, 1, 1, 12)
    one("hot team", 32, 4, 2, 1, 6)
    one("smaller", 32, 8, 12, 4)
    one("pilot", 16, 16, 12, 1, ceiling_too=True)
    one("hot", 16, 4, 8, 2)
    one("hot team", 16, 3, 1, 1, 12)
    one("larger", 128, 4, 12, 8, ceiling_too=True)
    one("larger", 128, 4, 14, 16)
    one("new", 64, 8, 8, 4)
    best = max(rows, key=lambda row: row["share"])
    say("best:", {name: round(each, 3) if isinstance(each, float) else each for name, each in best.items()})


FOLDER.mkdir(parents=True)
try:
    told = facts()
    keep("facts", told)
    say(told)
    if arguments.only != "grid":
        table()
    if arguments.only != "table":
        grid()
finally:
    shutil.rmtree(FOLDER)

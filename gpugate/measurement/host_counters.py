"""Counters of the host, by the operating system and by torch.compile: read around the blocks, outside of their time.

The CPU time, page faults and context switches of a side are those of all threads of this process in its timed blocks;
CPU time is also that of the worker processes. Reading them takes a few microseconds, and up to 50 for each worker,
whose state is read from /proc.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, process_time_ns, thread_time_ns
from typing import Any

import numpy as np
import torch

from gpugate.machine.cores import count_periods
from gpugate.machine.processes import is_running, list_descendants, worker_cpu_ns
from gpugate.units import round_stored
from gpugate.workload.counter_names import COMPILER_COUNTERS

_FIELDS = {
    "minor_faults": "ru_minflt",
    "major_faults": "ru_majflt",
    "voluntary_switches": "ru_nvcsw",
    "involuntary_switches": "ru_nivcsw",
}
# Spinning threads of OpenMP use the CPU time of the stepping thread once for each thread: 1.99 and 2.00 times with two
# threads, idle or overloaded; a step that computes on one thread uses it once. A pipeline's own threads use any amount.
SPINNING_THREADS = (0.8, 1.5)  # CPU time of the process, over threads x CPU time of the stepping thread
SPINNING_WAIT = 0.9  # CPU time of the stepping thread over wall time, where it waits for a GPU in a loop
NO_BLOCK = "no block was timed: give it a larger --perf-budget"
LOST = "a worker process ended while blocks were timed: keep the workers from step to step, see Side.close"
BEGAN = "worker processes were started while blocks were timed: start them in the first step, and keep them"


class CpuCounters:
    """Totals over the timed blocks of one side, in all builds of a measurement.

    `problem` is the reason for which the CPU time was not measured: the CPU time of a worker is known while it lives.
    """

    def __init__(self) -> None:
        self._totals = dict.fromkeys(_FIELDS, 0)
        self._own_ns = self._workers_ns = self._stepping_ns = self._wall_ns = self._steps = 0
        self._has_workers, self._threads = False, 1
        self._lost: str | None = None
        self.waits_ms: list[float] = []  # of those that the side serves

    def begin(self, workers: Collection[int] = ()) -> None:
        """Begins a block of a side with these worker processes."""
        self._before, self._before_ended_ns, self._workers = _read_usage(), worker_cpu_ns(()), workers
        self._before_workers_ns = worker_cpu_ns(workers)
        self._before_stepping_ns, self._before_own_ns = thread_time_ns(), process_time_ns()

    def end(self, steps: int, step_ms: float) -> None:
        """Ends a block of `steps` steps, which took `step_ms` each."""
        self._own_ns += process_time_ns() - self._before_own_ns
        self._stepping_ns += thread_time_ns() - self._before_stepping_ns
        self._workers_ns += worker_cpu_ns(self._workers) - self._before_workers_ns
        has_reaped = worker_cpu_ns(()) != self._before_ended_ns  # any child
        if has_reaped or not all(map(is_running, self._workers)):
            self.lose(LOST)
        self._wall_ns += round(1e6 * steps * step_ms)
        self._steps += steps
        self._has_workers = self._has_workers or bool(self._workers)
        self._threads = torch.get_num_threads()
        for name, count in _read_usage().items():
            self._totals[name] += count - self._before[name]

    def lose(self, why: str) -> None:
        """Gives up the CPU time for the first reason `why`; the other counters stay."""
        self._lost = self._lost or why

    @property
    def problem(self) -> str | None:
        return self._lost or (None if self._steps else NO_BLOCK)

    def per_step(self, on_gpu: bool = False) -> dict[str, float]:
        """Divides the totals by the timed steps, by the names of `counter_names`; empty without timed blocks."""
        if not self._steps:
            return {}
        counted = {name: round(total / self._steps, 3) for name, total in self._totals.items()}
        if self.waits_ms:
            counted["wait_ms"] = round_stored(float(np.mean(self.waits_ms)))
            counted["wait_p99_ms"] = round_stored(float(np.quantile(self.waits_ms, 0.99)))
        if self._lost is not None:
            return counted
        times_ns = {"cpu_ms": self._own_ns + self._workers_ns, "workers_cpu_ms": self._workers_ns}
        if not self._has_workers:
            del times_ns["workers_cpu_ms"]
        times_ms = {name: round_stored(total / self._steps / 1e6) for name, total in times_ns.items()}
        return counted | times_ms | {"spinning": float(self._spins(on_gpu))}

    def _spins(self, on_gpu: bool) -> bool:
        """True where threads of this process wait in a loop, so that its CPU time is that of waiting.

        On a CPU: with two threads of OpenMP or more, the process uses the CPU time of the stepping thread about as
        often as it has threads, see SPINNING_THREADS. Threads that really compute all the time look alike. Compared
        with wall time instead, threads that spin on overloaded cores would not show: each waits for a core.
        On a GPU: the stepping thread runs for nearly the whole step, see SPINNING_WAIT: a call of the step, such as
        `.item()` or a launch while the queue is full, waits for the device in a loop. Host work that never waits looks
        alike. The wait at the end of a block is none, see CudaEventTimer.
        """
        if on_gpu:
            return self._stepping_ns >= SPINNING_WAIT * self._wall_ns
        least, most = SPINNING_THREADS
        full_ns = self._threads * self._stepping_ns
        return self._threads > 1 and least * full_ns <= self._own_ns <= most * full_ns


def _read_usage() -> Mapping[str, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {name: getattr(used, field) for name, field in _FIELDS.items()}


LIMIT = "recompile_limit"  # in torch's messages about either of its limits
TIME = "total_wall_time"  # of compiling, in s, by torch's name
TIMED_KERNELS = "select_algorithm_autotune"  # torch's name, too; code that Inductor has in its cache counts again


class CompilerCounters:
    """Counts while a side is built, takes its first step, computes outputs and runs timed blocks."""

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()  # by name, and the compilations of each frame by its number

    @contextmanager
    def count(self) -> Iterator[None]:
        before = _read_compiler()
        yield
        self._counts += _read_compiler() - before

    @property
    def limit_problem(self) -> str | None:
        """The reason why some forms of input run eagerly; torch itself warns of the function. None where none does."""
        if not self._counts[LIMIT]:
            return None
        return (
            "torch.compile reached its limit of recompilations: further forms of input run eagerly; compile for "
            f"dynamic shapes, or raise torch._dynamo.config.{LIMIT}"
        )

    @property
    def is_autotuned(self) -> bool:
        """True where Inductor chose kernels by timing them."""
        return self._counts[TIMED_KERNELS] > 0

    @property
    def compile_s(self) -> float:
        return round_stored(float(self._counts[TIME]))

    def counters(self) -> dict[str, float]:
        """Returns the counts by the names of `counter_names`.

        A function that both sides compile is one frame to torch: the first compilation by a side is no recompilation.
        """
        again = sum(n - 1 for frame, n in self._counts.items() if isinstance(frame, int)) - self._counts[LIMIT]
        return {name: float(self._counts[name]) for name in COMPILER_COUNTERS} | {"recompilations": max(0.0, again)}


def _read_compiler() -> Counter[Any]:
    """Reads torch's counts. It never imports the compiler, which takes 3 s."""
    convert_frame, utils = (sys.modules.get(f"torch._dynamo.{name}") for name in ("convert_frame", "utils"))
    if convert_frame is None or utils is None:
        return Counter()
    found = defaultdict(Counter, utils.counters)  # a copy: a look-up adds the missing names
    counts = Counter(convert_frame.FRAME_COMPILE_COUNTER)
    counts["compiled_graphs"] = found["stats"]["unique_graphs"]
    counts[TIME] = utils.calculate_time_spent()[TIME]
    counts[TIMED_KERNELS] = found["inductor"][TIMED_KERNELS]
    counts["graph_breaks"] = found["graph_break"].total()
    counts["eager_frames"] = found["frames"]["total"] - found["frames"]["ok"]
    counts[LIMIT] = sum(count for message, count in found["unimplemented"].items() if LIMIT in message)
    return counts


PROC = Path("/proc")
MOST_THROTTLED = 0.05  # of the periods of a quota: the median of pairs bears as many slow ones
SHORTEST_S = 0.2  # the system counts ticks of 10 ms, too coarse for less
# Fields of a `cpuN` line that count time in which a core was busy: all but idle, iowait, and the guests' time, which is
# in the first two. `steal` is the time that a hypervisor gave to others. See proc_stat(5).
_BUSY = (1, 2, 3, 6, 7, 8)


class OtherWork:
    """Sums over the timed stretches of a measurement; `cores` is None for a shorter time than the system can count."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._wall_s = 0.0
        self._periods = Counter[tuple[Path, str]]()

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Adds the time of the block."""
        before, started, periods = _others_s(), monotonic(), count_periods()
        yield
        self._busy_s += _others_s() - before
        self._wall_s += monotonic() - started
        self._periods += count_periods() - periods

    @property
    def cores(self) -> float | None:
        return round(max(0.0, self._busy_s / self._wall_s), 2) if self._wall_s >= SHORTEST_S else None

    @property
    def throttled(self) -> float | None:
        """The share of the periods in which a quota throttled this process; None for one that does not matter."""
        ran = {group: count for (group, name), count in self._periods.items() if name == "nr_periods"}
        share = max((round(self._periods[group, "nr_throttled"] / ran[group], 2) for group in ran), default=0.0)
        return share if share > MOST_THROTTLED else None


def _others_s() -> float:
    """Sums the busy seconds of the cores that this process may use, without those of itself and its descendants."""
    lines = (PROC / "stat").read_text(encoding="ascii").splitlines()
    mine_ns = process_time_ns() + worker_cpu_ns(list_descendants(helpers=True))
    wanted = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    cores = (words for line in lines if (words := line.split()) and words[0] in wanted)
    return sum(int(words[field]) for words in cores for field in _BUSY) / os.sysconf("SC_CLK_TCK") - mine_ns / 1e9

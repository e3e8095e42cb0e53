"""CPU counters of one side per step of its timed blocks: CPU time, page faults and context switches.

The operating system counts them for all threads of this process; CPU time is also that of the worker processes. They
are read before and after a block, outside of its time, in a few microseconds and one more for each worker.
"""

from __future__ import annotations

import resource
from collections.abc import Collection, Mapping
from time import process_time_ns, thread_time_ns

import torch

from gpugate.machine.processes import cpu_time_ns
from gpugate.units import round_stored

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

    def begin(self, workers: Collection[int] = ()) -> None:
        """Begins a block of a side with these worker processes."""
        self._before, self._before_ended_s, self._workers = _read(), _read_ended_s(), workers
        self._before_workers_ns = self._read_workers_ns()
        self._before_stepping_ns, self._before_own_ns = thread_time_ns(), process_time_ns()

    def end(self, steps: int, step_ms: float) -> None:
        """Ends a block of `steps` steps, which took `step_ms` each."""
        self._own_ns += process_time_ns() - self._before_own_ns
        self._stepping_ns += thread_time_ns() - self._before_stepping_ns
        self._workers_ns += self._read_workers_ns() - self._before_workers_ns
        if _read_ended_s() != self._before_ended_s:
            self.lose(LOST)
        self._wall_ns += round(1e6 * steps * step_ms)
        self._steps += steps
        self._has_workers = self._has_workers or bool(self._workers)
        self._threads = torch.get_num_threads()
        for name, count in _read().items():
            self._totals[name] += count - self._before[name]

    def lose(self, why: str) -> None:
        """Gives up the CPU time for the first reason `why`; the other counters stay."""
        self._lost = self._lost or why

    def _read_workers_ns(self) -> int:
        try:
            return sum(map(cpu_time_ns, self._workers))
        except OSError:
            self.lose(LOST)
            return 0

    @property
    def problem(self) -> str | None:
        return self._lost or (None if self._steps else NO_BLOCK)

    def per_step(self, on_gpu: bool = False) -> dict[str, float]:
        """Divides the totals by the timed steps, by the names of gpugate.counter_names; empty without timed blocks."""
        if not self._steps:
            return {}
        counted = {name: round(total / self._steps, 3) for name, total in self._totals.items()}
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
        On a GPU: the stepping thread runs for nearly the whole step, see SPINNING_WAIT: CUDA waits for the device in a
        loop. Host work that never waits looks alike.
        """
        if on_gpu:
            return self._stepping_ns >= SPINNING_WAIT * self._wall_ns
        least, most = SPINNING_THREADS
        full_ns = self._threads * self._stepping_ns
        return self._threads > 1 and least * full_ns <= self._own_ns <= most * full_ns


def _read_ended_s() -> float:
    """Reads the CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read() -> Mapping[str, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {name: getattr(used, field) for name, field in _FIELDS.items()}

"""The clock of a tiny project: it counts what its thread computes and what its steps pretend to sleep.

A busy machine makes a thread wait, which this clock does not see, and a step of 4 ms is over at once.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from gpugate.faults import slow
from gpugate.measurement import device_timer, host_counters, pairing, run, sides, step_checks, warm_up

READERS = (device_timer, host_counters, pairing, run, sides, slow, step_checks, warm_up)
STEP_CPU_NS = 20_000
NAMES = ("perf_counter", "perf_counter_ns", "process_time_ns")


class WorkClock:
    """Takes the place of the functions of `time` by which the engine measures."""

    def __init__(self) -> None:
        self._slept_ns = self._cpu_ns = 0
        self.computes = True  # False: a reading takes 10 us, and computing no time: no load changes a ratio

    def sleep(self, seconds: float) -> None:
        self._slept_ns += round(seconds * 1e9)
        self._cpu_ns += STEP_CPU_NS

    def perf_counter_ns(self) -> int:
        if not self.computes:
            self._slept_ns += 10_000
            return self._slept_ns
        return time.thread_time_ns() + self._slept_ns

    def process_time_ns(self) -> int:
        """The same CPU time for each sleep: a busy machine makes the real one of a step several times longer."""
        return self._cpu_ns

    def perf_counter(self) -> float:
        return self.perf_counter_ns() / 1e9


class TorchOfProfilers(ModuleType):
    """torch without its compiler, which the first profiler of a process would import in a second for one setting."""

    def __getattr__(self, name: str) -> Any:
        if name == "_inductor":
            raise AttributeError(name)
        return getattr(torch, name)


clock = WorkClock()


def install() -> None:
    """Until the functions of `time` are put back, which a process of its own need not do."""
    for module, name in readers():
        setattr(module, name, getattr(clock, name))
    host_counters.SHORTEST_S = math.inf  # what else the machine does decides no test
    host_counters.count_periods = Counter  # type: ignore[attr-defined]  # nor does a quota of its CPU time
    torch.profiler.profiler.torch = TorchOfProfilers("torch")  # type: ignore[attr-defined]


def readers() -> Iterator[tuple[ModuleType, str]]:
    """Every engine module that measures time, with the name by which it reads the clock."""
    return ((module, name) for module in READERS for name in NAMES if hasattr(module, name))

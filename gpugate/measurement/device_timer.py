"""Clocks for a block of steps: CUDA events for device work, the host clock for pipelines and for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from time import get_clock_info, perf_counter_ns
from typing import Literal, Protocol

import torch


class Timer(Protocol):
    """A clock for one call; `resolution_ms` is the smallest difference that it resolves."""

    name: Literal["cuda events", "host clock"]
    resolution_ms: float
    event_host_ratios: list[float]

    def time_ms(self, run: Callable[[], None]) -> float: ...


class HostTimer:
    """The monotonic host clock; the work is over when `run` returns."""

    name: Literal["cuda events", "host clock"] = "host clock"
    resolution_ms = get_clock_info("perf_counter").resolution * 1e3

    def __init__(self) -> None:
        self.event_host_ratios: list[float] = []

    def time_ms(self, run: Callable[[], None]) -> float:
        start = perf_counter_ns()
        run()
        return (perf_counter_ns() - start) / 1e6


class CudaEventTimer:  # cuda only
    """A pair of CUDA events on the current stream, around work that was joined to that stream."""

    name: Literal["cuda events", "host clock"] = "cuda events"
    resolution_ms = 0.0005  # cudaEventElapsedTime: about 0.5 us, CUDA Runtime API reference

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.event_host_ratios: list[float] = []
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def time_ms(self, run: Callable[[], None]) -> float:
        torch.cuda.synchronize(self.device)
        self._start.record()
        run()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end))


class SynchronizedHostTimer:  # cuda only
    """The host clock between two device synchronizations, cross-checked by events on the current stream."""

    name: Literal["cuda events", "host clock"] = "host clock"
    resolution_ms = HostTimer.resolution_ms

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.event_host_ratios: list[float] = []
        self._events = CudaEventTimer(device)

    def time_ms(self, run: Callable[[], None]) -> float:
        torch.cuda.synchronize(self.device)
        start = perf_counter_ns()
        event_ms = self._events.time_ms(run)
        torch.cuda.synchronize(self.device)
        host_ms = (perf_counter_ns() - start) / 1e6
        self.event_host_ratios.append(event_ms / host_ms)
        return host_ms


def timer_for(device: torch.device, timing: Literal["device", "pipeline"]) -> Timer:
    if device.type != "cuda":
        return HostTimer()
    return SynchronizedHostTimer(device) if timing == "pipeline" else CudaEventTimer(device)  # cuda only

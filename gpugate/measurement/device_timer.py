"""Clocks for a block of steps: CUDA events for device work, the host clock for pipelines and for the CPU.

The clock of the GPU itself cannot be assumed locked: NVML gives it, and throttle reasons, around every block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Literal

import pynvml
import torch

from gpugate.measurement.record import ClockReading

TimerName = Literal["cuda events", "host clock"]


class HostTimer:
    """The monotonic host clock for one call, whose work is over when `run` returns."""

    name: TimerName = "host clock"

    def __init__(self) -> None:
        self.event_host_ratios: list[float] = []

    def time_ms(self, run: Callable[[], None]) -> float:
        start = perf_counter_ns()
        run()
        return (perf_counter_ns() - start) / 1e6


class CudaEventTimer(HostTimer):  # cuda only
    """A pair of CUDA events on the current stream, around work that was joined to that stream.

    The host blocks until the second event: a host that waits in a loop would spend CPU time, which the bill counts.
    """

    name: TimerName = "cuda events"

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]

    def time_ms(self, run: Callable[[], None]) -> float:
        torch.cuda.synchronize(self.device)
        self._start.record()
        run()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end))


class SynchronizedHostTimer(CudaEventTimer):  # cuda only
    """The host clock between two device synchronizations, cross-checked by events on the current stream."""

    name = "host clock"

    def time_ms(self, run: Callable[[], None]) -> float:
        torch.cuda.synchronize(self.device)
        start = perf_counter_ns()
        event_ms = super().time_ms(run)
        torch.cuda.synchronize(self.device)
        host_ms = (perf_counter_ns() - start) / 1e6
        self.event_host_ratios.append(event_ms / host_ms)
        return host_ms


def timer_for(device: torch.device, timing: Literal["device", "pipeline"]) -> HostTimer:
    if device.type != "cuda":
        return HostTimer()
    return SynchronizedHostTimer(device) if timing == "pipeline" else CudaEventTimer(device)  # cuda only


# Reasons that spoil a block. A clock capped by power is not among them: under load, a GPU normally runs so.
_SPOILING = {
    "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "hardware thermal slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "software thermal slowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
    "power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
}
POWER_CAP = "power cap"
BURST_SHARE = 0.985  # of the highest clock; below it a clock that nothing else explains is capped
ReadClock = Callable[[], ClockReading]


def spoiling_reasons(bits: int) -> tuple[str, ...]:
    """Names the throttle reasons in NVML's bit mask that make a block worthless."""
    return tuple(name for name, bit in _SPOILING.items() if bits & bit)


def clock_reader(device: torch.device) -> ReadClock:
    """Returns a function that reads the device's clock, about 20 us a call; on a CPU the function reads nothing."""
    if device.type != "cuda":
        return ClockReading
    uuid = torch.cuda.get_device_properties(device).uuid  # cuda only
    try:  # cuda only
        pynvml.nvmlInit()
        # NVML and CUDA may number GPUs differently: the UUID is the same in both.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        highest_mhz = int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
        _read(handle, highest_mhz)
    except pynvml.NVMLError:  # a MIG slice or a container whose clocks cannot be read: None, never a guess
        return ClockReading
    return partial(_read, handle, highest_mhz)


def is_capped(bits: int, clock_mhz: int, highest_mhz: int) -> bool:
    """True where the power limit lowers the clock: NVML reports it, or the clock shows it.

    The clock of an idle GPU, and of a GPU whose clocks are set, is low for another reason.
    """
    if bits & pynvml.nvmlClocksThrottleReasonSwPowerCap:
        return True
    idle = bits & (pynvml.nvmlClocksThrottleReasonGpuIdle | pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting)
    return not idle and clock_mhz < BURST_SHARE * highest_mhz


def _read(handle: object, highest_mhz: int) -> ClockReading:  # cuda only
    clock_mhz = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    capped = is_capped(int(reasons), int(clock_mhz), highest_mhz)
    return ClockReading(int(clock_mhz), spoiling_reasons(int(reasons)), capped)

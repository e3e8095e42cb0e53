"""SM clock and throttle reasons around every block, from NVML: clocks cannot be assumed locked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pynvml
import torch

from gpugate.measurement.record import ClockReading

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
    return _nvml_reader(torch.cuda.get_device_properties(device).uuid)  # cuda only


def _nvml_reader(uuid: object) -> ReadClock:  # cuda only
    try:
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

"""Readings of a GPU's clock from a stand-in for NVML; none where NVML reports no clock."""

from collections.abc import Callable
from types import SimpleNamespace

import pynvml
import pytest
import torch

from gpugate.measurement import gpu_clock
from gpugate.measurement.gpu_clock import clock_reader, is_capped, spoiling_reasons
from gpugate.measurement.record import ClockReading

GPU = torch.device("cuda", 0)
CALLS = (
    "nvmlInit",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)


@pytest.fixture
def use_nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes pynvml answer for one GPU; the calls that are named raise NVMLError."""
    answers = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": "handle",
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetCurrentClocksThrottleReasons": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    }

    def use(*failing: str) -> None:
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answering(answer, name in failing))

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="a-b"))
    return use


def answering(answer: object, fails: bool) -> Callable[..., object]:
    def call(*asked: object) -> object:
        if fails:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        assert asked in ((), (b"GPU-a-b",), ("handle",), ("handle", pynvml.NVML_CLOCK_SM))
        return answer

    return call


def test_the_clock_and_what_slows_it_down_are_read(use_nvml: Callable[..., None]) -> None:
    use_nvml()
    assert clock_reader(GPU)() == ClockReading(1980, ("hardware slowdown",))


@pytest.mark.parametrize("failing", CALLS)
def test_a_gpu_that_does_not_tell_has_no_reading(use_nvml: Callable[..., None], failing: str) -> None:
    use_nvml(failing)
    assert clock_reader(GPU)() == ClockReading(None, ())


def test_a_cpu_is_not_asked(use_nvml: Callable[..., None]) -> None:
    use_nvml(*CALLS)
    assert clock_reader(torch.device("cpu"))() == ClockReading()


def test_only_what_spoils_a_block_is_named() -> None:
    assert spoiling_reasons(pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonGpuIdle) == ()
    every = sum(gpu_clock._SPOILING.values())
    assert spoiling_reasons(every) == tuple(gpu_clock._SPOILING)


@pytest.mark.parametrize(
    ("bits", "clock_mhz", "capped"),
    [
        (0, 1980, False),
        (0, 1965, False),
        (0, 1875, True),
        (pynvml.nvmlClocksThrottleReasonSwPowerCap, 1980, True),
        (pynvml.nvmlClocksThrottleReasonGpuIdle, 345, False),
        (pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting, 1500, False),
    ],
)
def test_a_clock_below_that_of_short_bursts_is_capped_by_power(bits: int, clock_mhz: int, capped: bool) -> None:
    assert is_capped(bits, clock_mhz, 1980) is capped

"""Readings of a GPU's clock from a stand-in for NVML; none where NVML reports no clock."""

from collections.abc import Callable
from types import SimpleNamespace

import pynvml
import pytest
import torch

from gpugate.measurement.device_timer import clock_reader, is_capped, spoiling_reasons
from gpugate.measurement.record import ClockReading

GPU = torch.device("cuda", 0)
ANSWERS = {
    "nvmlInit": None,
    "nvmlDeviceGetHandleByUUID": "handle",
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetCurrentClocksThrottleReasons": pynvml.nvmlClocksThrottleReasonHwSlowdown,
}


def answering(answer: object, fails: bool) -> Callable[..., object]:
    def call(*asked: object) -> object:
        if fails:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        assert asked in ((), (b"GPU-a-b",), ("handle",), ("handle", pynvml.NVML_CLOCK_SM))
        return answer

    return call


@pytest.mark.parametrize("failing", [None, *ANSWERS])
def test_the_clock_and_what_slows_it_down_are_read_where_nvml_tells(
    monkeypatch: pytest.MonkeyPatch, failing: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="a-b"))
    for name, answer in ANSWERS.items():
        monkeypatch.setattr(pynvml, name, answering(answer, name == failing))
    assert clock_reader(GPU)() == (ClockReading() if failing else ClockReading(1980, ("hardware slowdown",)))
    assert clock_reader(torch.device("cpu"))() == ClockReading()


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x1 | 0x4, ()),  # idle; power cap: how a GPU normally runs under load
        (0x48 | 0x4, ("hardware slowdown", "hardware thermal slowdown")),
        (0x20 | 0x80, ("software thermal slowdown", "power brake")),
    ],
)
def test_reasons_that_spoil_a_block(bits: int, names: tuple[str, ...]) -> None:
    assert spoiling_reasons(bits) == names


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

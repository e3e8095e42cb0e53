"""A machine's own ceilings: the formulas with scripted times, and a small real probe."""

from collections.abc import Callable

import pytest
import torch

from gpugate.judging.machine_state import SICK_SHARE
from gpugate.measurement import yardsticks
from gpugate.measurement.device_timer import HostTimer
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.measurement.yardsticks import probe

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardsticks, "CPU_MATMUL", 128)
    monkeypatch.setattr(yardsticks, "CPU_COPY_BYTES", 4 * 10**5)


class ScriptedTimer(HostTimer):
    """Most probes stall; the best takes 2 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.times_ms = [2.1, 900.0, 2.0, 900.0, 900.0, 2.2, 900.0] * 4

    def time_ms(self, run: Callable[[], None]) -> float:
        run()
        return self.times_ms.pop()


def test_ceilings_are_the_best_of_seven_probes_in_the_unit_of_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardsticks, "HostTimer", ScriptedTimer)
    values = probe(CPU, "before").values
    assert values["matmul_fp32_tflops"] == pytest.approx(2 * 128**3 / 2e-3 / 1e12)
    assert values["memcpy_gb_per_s"] == pytest.approx(8e5 / 2e-3 / 1e9)  # read and written


def test_a_probe_of_this_machine_gives_every_ceiling_and_says_when() -> None:
    found = probe(CPU, "between")
    assert found.taken == "between"
    assert set(found.values) - {"matmul_bf16_cpu_tflops"} == {"matmul_fp32_tflops", "memcpy_gb_per_s"}
    assert all(value > 0 for value in found.values.values())


def test_a_sick_cpu_is_told_by_a_ceiling_that_is_probed() -> None:
    assert "matmul_fp32_tflops" in set(probe(CPU, "after").values) & set(SICK_SHARE)


def test_the_ceiling_of_products_is_the_faster_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardsticks, "HostTimer", ScriptedTimer)
    script = [[4.0] * 7, [1.0] * 7, [2.0] * 7, [2.0] * 7]  # matmul, convolution, copy, bf16
    monkeypatch.setattr(
        ScriptedTimer, "time_ms", lambda self, run: (run(), script[0].pop(), script[0] or script.pop(0))[1]
    )
    assert probe(CPU, "before").values["matmul_fp32_tflops"] == pytest.approx(2 * 128**3 / 1e-3 / 1e12)


def test_a_probe_runs_under_the_suites_own_flags() -> None:
    torch.backends.cudnn.benchmark = True
    probe(CPU, "before")
    assert TorchFlags.current() == TorchFlags()

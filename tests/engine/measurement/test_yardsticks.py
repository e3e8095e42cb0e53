"""A machine's own ceilings: the formulas with scripted times, and a small real probe."""

from itertools import chain

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


@pytest.mark.parametrize(("threads", "size"), [(1, 64), (4, 64), (5, 128)])
@pytest.mark.parametrize("matmul_ms", [0.1, 2.0])
def test_ceilings_are_the_best_of_seven_probes_and_of_two_libraries_in_the_unit_of_their_name(
    monkeypatch: pytest.MonkeyPatch, threads: int, size: int, matmul_ms: float
) -> None:
    """Of each probe most calls stall. Few threads need no large product."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    best_ms = iter([matmul_ms, 1.0, 2.0, 2.0])  # matmul, convolution, copy, bf16
    times_ms = chain.from_iterable([2.1, 900.0, best, 900.0, 900.0, 2.2, 900.0] for best in best_ms)
    scripted = type("Scripted", (HostTimer,), {"time_ms": lambda self, run: (run(), next(times_ms))[1]})
    monkeypatch.setattr(yardsticks, "HostTimer", scripted)
    values = probe(CPU).values
    by_matmul, by_convolution = 2 * size**3 / matmul_ms, 2 * 9 * (size // 4) ** 2 * 28**2 / 1.0
    assert (by_matmul > by_convolution) == (matmul_ms == 0.1)
    assert values["matmul_fp32_tflops"] == pytest.approx(max(by_matmul, by_convolution) / 1e9)
    assert values["memcpy_gb_per_s"] == pytest.approx(8e5 / 2e-3 / 1e9)  # read and written


def test_a_probe_of_this_machine_gives_every_ceiling() -> None:
    torch.backends.cudnn.benchmark = True
    found = probe(CPU)
    assert TorchFlags.current() == TorchFlags(), "it runs under the suite's own flags"
    assert set(found.values) - {"matmul_bf16_cpu_tflops"} == {"matmul_fp32_tflops", "memcpy_gb_per_s"}
    assert all(value > 0 for value in found.values.values())
    assert "matmul_fp32_tflops" in SICK_SHARE, "it shows a sick CPU"

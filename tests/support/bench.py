"""A bench for whole measurements on a CPU: made-up sides, and a clock that only their steps move."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpugate.faults import slow
from gpugate.measurement import outputs, pairing, run, sides, step_checks, warm_up
from gpugate.measurement.device_timer import HostTimer
from gpugate.measurement.progress import Progress
from gpugate.measurement.record import Measurement
from gpugate.measurement.run import WorkloadCache, measure
from gpugate.measurement.settings import WARM_UP_S, Settings
from gpugate.workload import BASELINE, Build, Case, Context, Optimization, Side, Size, Workload

CPU = torch.device("cpu")
WEIGHT = torch.linspace(-1.0, 1.0, 12).reshape(4, 3)
NEARLY_WEIGHT = WEIGHT + 1e-7
Step = Callable[[Any], Any]
StepMs = float | Callable[[], float]


def product(inputs: torch.Tensor) -> torch.Tensor:
    return inputs @ WEIGHT


def other_kernels(inputs: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ij,jk->ik", inputs, WEIGHT) + 0.0


@pytest.fixture(autouse=True)
def quick_collections() -> Iterator[None]:
    """Every released side is followed by a garbage collection: what torch holds need not be looked through again."""
    gc.freeze()
    yield
    gc.unfreeze()


class Bench:
    """A made-up clock, a log of what was built and closed, and builders of sides that take a scripted time."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.log: list[str] = []
        self.told: list[Progress] = []
        self.made: list[int] = []

    def side(self, name: str, step_ms: StepMs, step: Step = product, build_s: float = 0.0, **more: Any) -> Build:
        def timed(inputs: Any) -> Any:
            self.now_ms += step_ms() if callable(step_ms) else step_ms
            return step(inputs)

        def build(context: Context) -> Side:
            self.log.append(f"build {name}")
            self.now_ms += 1e3 * build_s
            return Side(timed, close=lambda: self.log.append(f"close {name}"), **more)

        return build

    def inputs(self, context: Context, index: int) -> torch.Tensor:
        self.made.append(index)
        return torch.randn(2, 4, generator=torch.Generator().manual_seed(index))

    def case(self, optimized: Build | None = None, baseline: Build | None = None, **more: Any) -> Case:
        optimization = Optimization("fast", optimized or self.side("fast", 1.0, other_kernels), {"cpu": 1.0})
        build = baseline or self.side(BASELINE, 3.0)
        workload = Workload("net", build, self.inputs, {"cpu": Size(2, 0, 0)}, (optimization,), cold=False, **more)
        return Case(workload, optimization, "cpu")

    def look_s(self) -> float:
        """Each look at the clock takes a microsecond: what waits for it does not wait forever."""
        self.now_ms += 0.001
        return self.now_ms / 1e3

    def measure(self, case: Case, cache: WorkloadCache | None = None, **settings: Any) -> Measurement:
        context = Context(CPU, items=2, seed=0, cache_dir=Path())
        return measure(case, context, Settings(**settings), self.told.append, cache)


class BenchTimer(HostTimer):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench

    def time_ms(self, run: Callable[[], None]) -> float:
        before_ms = self.bench.now_ms
        run()
        return self.bench.now_ms - before_ms


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    for module in (run, warm_up, pairing, sides, step_checks, outputs):
        monkeypatch.setattr(module, "perf_counter", lambda: made.now_ms / 1e3)
    monkeypatch.setattr(slow, "perf_counter", made.look_s)
    for name in ("process_time_ns", "thread_time_ns"):
        monkeypatch.setattr(slow, name, lambda: round(1e9 * made.look_s()))
    monkeypatch.setattr(step_checks, "MOST_STEPS", 100)
    monkeypatch.setitem(WARM_UP_S, "cpu", 0.03)
    monkeypatch.setattr(step_checks, "process_time_ns", lambda: int(made.now_ms * 1e6))
    monkeypatch.setattr(run, "timer_for", lambda device, timing: BenchTimer(made))
    return made

"""Shared by the engine's tests: pytester, and two made-up sessions for the reports."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from gpugate.machine.environment import Environment
from gpugate.measurement.record import Counters, Measurement, Pair, SideCost, TimedBuild, Yardstick
from gpugate.results.case import CaseResult
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.summary import summarize
from gpugate.results.verdict import Check, NextStep, Outcome, Verdict
from gpugate.workload import Size

if TYPE_CHECKING:
    from tests.support.tiny_project import TinyProject
    from tests.support.warm_python import WarmPython

pytest_plugins = ["pytester"]
# A shell starts its background jobs with Ctrl-C ignored, and nohup ignores SIGHUP; every child here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# In a worker of pytest-xdist, the sessions that tests begin are none of its own: pytest-benchmark would be off in them.
for _name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
    del os.environ[_name]
# Inductor asks a process of its own, which imports torch, about each vector instruction set of the CPU: 20 s a process.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# Of a test's run nothing is remembered, unless the test is about the store.
os.environ["GPUGATE_STORE"] = "off"
# Where pytest sees a CI, its summary repeats whole messages; what the tests read is what a person at a terminal reads.
for _name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(_name, None)

H200 = Environment(
    device_kind="cuda",
    device_name="NVIDIA H200",
    cpu_model="AMD EPYC 9654 96-Core Processor",
    cpu_count=16,
    python="3.12.3",
    packages={"torch": "2.11.0+cu130", "torchvision": "0.26.0", "gpugate": "0.1.0"},
    gpu_index=0,
    compute_capability="9.0",
    driver="580.65.06",
    cuda="13.0",
    cudnn="9.19.0",
)
TWO_CORES = Environment("cpu", "Intel Xeon 8481C", "Intel Xeon 8481C", 2, "3.11.7", {"torch": "2.11.0+cpu"})
RESNET, NET = "resnet50-inference", "two-layer-net"
RESNET_SIZE, RESNET_CPU_SIZE, NET_SIZE = Size(128, 1.05e12, 1e8), Size(4, 3.3e10, 1e8), Size(64, 6.8e7, 3e5)
EAGER = {"kernels": 283, "kernel_launches": 283, "graph_launches": 0}
GRAPH = {"kernels": 62, "kernel_launches": 0, "graph_launches": 1}
NO_TENSORRT = "package tensorrt is missing: pip install 'gpugate[tensorrt]'"


def case(case_id: str, size: Size, compared_with: str = "baseline") -> CaseResult:
    workload, optimization, _ = case_id.split("/")
    return CaseResult(case_id, workload, optimization, compared_with, size)


def measured(made: CaseResult, reference_ms: float, optimized_ms: float, counters: Counters) -> CaseResult:
    """The case with ten pairs around the given times."""
    wobble = [1 + 0.0005 * step for step in range(-5, 5)]
    pairs = tuple(Pair(reference_ms * (2 - factor), optimized_ms * factor, True) for factor in wobble)
    missing = None if counters else "they need CUDA"
    costs = SideCost(0.1, 0.2), SideCost(11.0, 1.4)
    instances = (TimedBuild(True, pairs),)
    made.measurement = Measurement(
        made.case_id, instances, "narrow", (), *costs, optimized_counters=counters, counters_missing=missing
    )
    made.summary = summarize(made.measurement)
    return made


PASSED = Reason(ReasonCode.NO_RECORD, {"purpose": "recording"})
STEPS = {
    Outcome.NO_BASELINE: NextStep.RECORD,
    Outcome.IMPROVED: NextStep.RECORD,
    Outcome.NOT_ENGAGED: NextStep.TRACE,
    Outcome.WRONG: NextStep.REPEAT,
    Outcome.PASS: None,
}


def judged(made: CaseResult, reason: Reason, **outcomes: Outcome) -> CaseResult:
    """The case with a PASS for every check but those named."""
    checks: tuple[Check, ...] = ("equivalence", "speedup", "throughput", "counters")
    for check in checks:
        outcome = outcomes.get(check, Outcome.PASS)
        step = STEPS.get(outcome, NextStep.MEASURE_LONGER)
        made.verdicts.append(Verdict(check, made.case_id, outcome, (reason,), step))
    return made


def run_of(environment: Environment, cases: list[CaseResult], yardsticks: list[Mapping[str, float]]) -> RunResult:
    run = RunResult(environment, "2026-01-31T04:05:06+00:00", seed=7, wall_s=182.4)
    run.cases = {made.case_id: made for made in cases}
    run.yardsticks = [Yardstick(values) for values in yardsticks]
    return run


def gpu_session() -> RunResult:
    """An H200 session with one of everything: PASS, IMPROVED, NO_BASELINE twice, REGRESSED, two skips, one error."""
    missing = Reason(ReasonCode.NO_RECORD, {"purpose": "gate"})
    no_baseline = {"speedup": Outcome.NO_BASELINE, "throughput": Outcome.NO_BASELINE}
    limit: dict[str, Fact] = {"counter": "whole_run_speedup", "value": 8.87, "side": "below", "limit": 9.0}
    slow = Reason(ReasonCode.LIMIT_BROKEN, limit)
    passed = measured(case(f"{RESNET}/channels-last-fp16/cuda", RESNET_SIZE), 35.9, 8.1, EAGER)
    improved = measured(
        case(f"{NET}/pinned-async/cuda", NET_SIZE), 0.0655, 0.0212, {"kernels": 6, "kernel_launches": 6}
    )
    graph = case(f"{RESNET}/cuda-graph/cuda", RESNET_SIZE, "channels-last-fp16")
    inductor = measured(case(f"{RESNET}/inductor-fp16/cuda", RESNET_SIZE), 35.9, 4.42, EAGER)
    fused = measured(case(f"{RESNET}/cudnn-fused/cuda", RESNET_SIZE), 35.9, 4.05, GRAPH)
    skipped = [case(f"{RESNET}/tensorrt-fp16/cuda", RESNET_SIZE), case(f"{RESNET}/tensorrt-fp32/cuda", RESNET_SIZE)]
    for each in skipped:
        each.skipped = NO_TENSORRT
    failed = case(f"{RESNET}/fp16/cuda", RESNET_SIZE)
    failed.error = "fp16 failed while building: OutOfMemoryError: CUDA out of memory"
    cases = [
        judged(passed, PASSED),
        judged(improved, Reason(ReasonCode.NO_BILL), throughput=Outcome.IMPROVED),
        judged(measured(graph, 8.1, 7.79, GRAPH), missing, **no_baseline),
        judged(inductor, missing, **no_baseline),
        judged(fused, slow, speedup=Outcome.REGRESSED),
    ]
    probe = {"matmul_bf16_tflops": 788.0, "matmul_fp32_tflops": 51.2, "launch_latency_us": 2.13}
    slower, faster = {**probe, "matmul_bf16_tflops": 700.0}, {**probe, "matmul_bf16_tflops": 790.0}
    return run_of(H200, [*cases, *skipped, failed], [slower, faster, probe])


@pytest.fixture
def gpu_run() -> RunResult:
    return gpu_session()


def cpu_session() -> RunResult:
    """A session on two cores: no counters, and nothing judged in one of its two cases."""
    resnet = measured(case(f"{RESNET}/channels-last/cpu", RESNET_CPU_SIZE), 512.0, 431.0, {})
    net = measured(case(f"{NET}/inductor/cpu", NET_SIZE), 0.512, 0.431, {})
    return run_of(
        TWO_CORES,
        [judged(resnet, PASSED), net],
        [{"matmul_fp32_tflops": 0.21, "memcpy_gb_per_s": 9.8}],
    )


@pytest.fixture
def cpu_run() -> RunResult:
    return cpu_session()


@pytest.fixture
def tiny(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm_children: None) -> Iterator[TinyProject]:
    """A user's project with one small workload. Runs in this process leave the catalogue as they found it."""
    from tests.support import tiny_project

    with tiny_project.alone_in_the_catalogue():
        tiny_project.without_gpu(monkeypatch)
        tiny_project.kept(monkeypatch)
        for name, value in tiny_project.environment(pytester.path).items():
            monkeypatch.setenv(name, value)
        yield tiny_project.TinyProject(pytester.path, pytester)


@pytest.fixture(scope="module", autouse=True)
def quick_to_collect() -> None:
    """Leaves what was imported out of every collection of garbage; the engine collects after every build."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def recorded_project(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> TinyProject:
    """A project whose baseline two fresh processes have recorded, once for all tests: copy from it, change nothing."""
    from tests.support import tiny_project

    with pytest.MonkeyPatch.context() as patch:
        warm_python.start_children(patch)
        return tiny_project.recorded(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    from tests.support.warm_python import WarmPython

    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture
def warm_children(warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that the engine runs in children begin with torch imported."""
    warm_python.start_children(monkeypatch)

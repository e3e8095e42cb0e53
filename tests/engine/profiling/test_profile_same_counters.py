"""A report and a counting pass that saw the same events give the same counters: one set of events, written twice."""

from pathlib import Path
from typing import Any

import pytest

from gpugate.counter_names import COUNTER_NAMES
from gpugate.measurement.trace import WINDOW, Event, counters, read_activity
from gpugate.profiling.summary import summarize
from tests.support.profile_exports import (
    BACKWARD,
    DEVICE,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    LOADER,
    MAIN,
    PAGEABLE,
    PINNED,
    ExportWriter,
)

US = 1000
STEPS, BEGIN, STEP_US = 2, 1000, 10_000
# What calls are named in a report, and in a trace of torch's profiler.
CALLS = {
    "cudaLaunchKernel_v7000": "cudaLaunchKernel",
    "cudaLaunchKernelExC_v11060": "cudaLaunchKernelExC",
    "cuLaunchKernel": "cuLaunchKernel",
    "cuLaunchKernelEx": "cuLaunchKernelEx",
    "cudaLaunchCooperativeKernel_v9000": "cudaLaunchCooperativeKernel",
    "cudaLaunchHostFunc_v10000": "cudaLaunchHostFunc",
    "cudaGraphLaunch_v10000": "cudaGraphLaunch",
    "cuGraphLaunch": "cuGraphLaunch",
    "cudaMemcpyAsync_v3020": "cudaMemcpyAsync",
    "cudaMemcpy_v3020": "cudaMemcpy",
    "cudaMemcpy2D_v3020": "cudaMemcpy2D",
    "cuMemcpyHtoD_v2": "cuMemcpyHtoD_v2",
    "cudaMemsetAsync_v3020": "cudaMemsetAsync",
    "cudaMemset_v3020": "cudaMemset",
    "cudaStreamSynchronize_v3020": "cudaStreamSynchronize",
    "cudaStreamSynchronize_ptsz_v7000": "cudaStreamSynchronize",
    "cudaDeviceSynchronize_v3020": "cudaDeviceSynchronize",
    "cudaEventSynchronize_v3020": "cudaEventSynchronize",
    "cuCtxSynchronize": "cuCtxSynchronize",
    "cudaStreamWaitEvent_v3020": "cudaStreamWaitEvent",
    "cudaEventQuery_v3020": "cudaEventQuery",
    "cudaMalloc_v3020": "cudaMalloc",
    "cudaFree_v3020": "cudaFree",
    "cudaMallocAsync_v11020": "cudaMallocAsync",
}
KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4>(int)",
    "triton_poi_fused_add_0",
    "sm90_xmma_fprop_implicit_gemm_f16f16_f32_nhwc_kernel",
    "nvjet_hsh_128x128_64x4",
    "sgemm_128x64_nn",
)
COPIES = {
    (HOST_TO_DEVICE, PAGEABLE, DEVICE): "HtoD (Pageable -> Device)",
    (HOST_TO_DEVICE, PINNED, DEVICE): "HtoD (Pinned -> Device)",
    (DEVICE_TO_HOST, DEVICE, PAGEABLE): "DtoH (Device -> Pageable)",
    (DEVICE_TO_DEVICE, DEVICE, DEVICE): "DtoD (Device -> Device)",
}


class Both:
    """Writes each event into an export and into a trace; times are in us."""

    def __init__(self, path: Path) -> None:
        self.report = ExportWriter(path)
        self.trace: list[Event] = [
            self._event("user_annotation", WINDOW, BEGIN, STEPS * STEP_US, tid=MAIN),
            self._event("cpu_op", "autograd::engine::evaluate_function: AddBackward0", BEGIN, 1, tid=BACKWARD),
        ]
        self.report.thread(BACKWARD, "pt_autograd_0")
        for step in range(STEPS):
            self.report.step((BEGIN + step * STEP_US) * US, (BEGIN + (step + 1) * STEP_US) * US)

    def call(self, name: str, at: int, tid: int = MAIN) -> int:
        correlation = self.report.call(name, at * US, (at + 3) * US, tid)
        category = "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"
        self.trace.append(self._event(category, CALLS[name], at, 3, correlation, tid))
        return correlation

    def kernel(self, correlation: int, at: int, length: int, name: str, stream: int = 7) -> None:
        self.report.kernel(correlation, at * US, (at + length) * US, name, streamId=stream)
        self.trace.append(self._event("kernel", name, at, length, correlation, stream=stream))

    def copy(self, correlation: int, at: int, length: int, kinds: tuple[int, int, int], stream: int) -> None:
        self.report.copy(correlation, at * US, (at + length) * US, 4096, kinds, streamId=stream)
        name = f"Memcpy {COPIES[kinds]}"
        self.trace.append(self._event("gpu_memcpy", name, at, length, correlation, stream=stream, bytes=4096))

    def memset(self, correlation: int, at: int, length: int) -> None:
        self.report.memset(correlation, at * US, (at + length) * US)
        self.trace.append(self._event("gpu_memset", "Memset (Device)", at, length, correlation, stream=7, bytes=64))

    @staticmethod
    def _event(
        category: str, name: str, ts: int, dur: int, correlation: int | None = None, tid: int = 0, **args: Any
    ) -> Event:
        known = {} if correlation is None else {"correlation": correlation}
        return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": {**args, **known}}


@pytest.fixture
def both(tmp_path: Path) -> Both:
    made = Both(tmp_path / "report.sqlite")
    for tid, start in (
        (MAIN, BEGIN),
        (BACKWARD, BEGIN + 5),
        (LOADER, BEGIN - 50),
        (MAIN, BEGIN + STEPS * STEP_US - 40),
    ):
        for number, name in enumerate(CALLS):  # some of these begin before the steps or after them
            made.call(name, start + number * 5, tid)
    for number in range(40):
        correlation = made.call(list(CALLS)[number % 5], BEGIN + 500 + number * 11)
        made.kernel(correlation, BEGIN + 600 + number * 17, 9 + number % 3, KERNELS[number % len(KERNELS)])
    replay = made.call("cudaGraphLaunch_v10000", BEGIN + 6000)
    for number in range(7):
        made.kernel(replay, BEGIN + 6100 + number * 20, 13, KERNELS[0], stream=8)
    for number, kinds in enumerate([*COPIES] * 3):
        correlation = made.call("cudaMemcpyAsync_v3020", BEGIN + 1500 + number * 7)
        made.copy(correlation, BEGIN + 700 + number * 23, 15, kinds, stream=9)
    made.memset(made.call("cudaMemsetAsync_v3020", BEGIN + 3000), BEGIN + 3010, 5)
    for at in (BEGIN - 100, BEGIN + STEPS * STEP_US + 1):
        outside = made.call("cudaLaunchKernel_v7000", at)
        made.kernel(outside, BEGIN + 4000, 100, KERNELS[0], stream=99)
    return made


def test_both_give_the_same_counters(both: Both) -> None:
    counted = counters(read_activity(both.trace, STEPS))
    found = summarize(both.report.written(), STEPS).counters
    assert found.keys() == counted.keys()
    exact = [name for name in counted if not name.endswith(("_ms", "_fraction"))]
    assert {name: found[name] for name in exact} == {name: counted[name] for name in exact}
    assert dict(found) == pytest.approx(counted, rel=1e-12)
    assert all(counted.values())


def test_every_counter_has_a_known_name(both: Both) -> None:
    assert set(summarize(both.report.written()).counters) <= set(COUNTER_NAMES)

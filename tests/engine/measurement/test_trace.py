"""Counts and the profile of a step from small traces by hand, in the shape that torch.profiler exports."""

from typing import Any

import pytest

from gpugate.measurement.counters import LEAST_ACTIVE, CountedSide
from gpugate.measurement.record import OTHERS, StepProfile
from gpugate.measurement.trace import (
    FILLING,
    JOIN,
    LONGEST_NAME,
    MOST_PARTS,
    WINDOW,
    Activity,
    Event,
    lost_kernels,
    read_activity,
    signature,
    step_profile,
)
from gpugate.measurement.trace import counters as counted
from gpugate.workload.counter_names import COUNTER_NAMES

WINDOW_EVENT = {"ph": "X", "cat": "user_annotation", "name": WINDOW, "ts": 1000.0, "dur": 1000.0, "args": {}}


def event(category: str, name: str, ts: float, dur: float, correlation: int, **args: Any) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": ts,
        "dur": dur,
        "args": {**args, "correlation": correlation},
    }


def call(name: str, correlation: int, ts: float = 1100.0, dur: float = 10.0, category: str = "cuda_runtime") -> Event:
    return event(category, name, ts, dur, correlation)


def kernel(correlation: int, ts: float = 1200.0, dur: float = 10.0, name: str = "k", stream: int = 7) -> Event:
    return event("kernel", name, ts, dur, correlation, stream=stream)


def copy(kind: str, correlation: int, ts: float = 1200.0, dur: float = 10.0, **args: Any) -> Event:
    return event("gpu_memcpy", f"Memcpy {kind}", ts, dur, correlation, **{"stream": 7, "bytes": 0, **args})


def activity(*events: Event, steps: int = 1) -> Activity:
    return read_activity([WINDOW_EVENT, *events], steps)


def test_a_trace_without_the_window_is_refused() -> None:
    with pytest.raises(ValueError, match="no range 'gpugate: counted steps'"):
        read_activity([call("cudaLaunchKernel", 1)], 1)


def test_counts_are_per_step_and_api_time_is_in_milliseconds() -> None:
    names = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx", "cudaLaunchCooperativeKernel")
    launches = [call(name, number, ts=1100 + number, dur=20.0) for number, name in enumerate(names)]
    graph = [call("cudaGraphLaunch", 4, dur=20.0), call("cudaMemsetAsync", 5, dur=20.0)]
    ran = [kernel(min(number, 4), ts=1200 + number, stream=7 + number % 2) for number in range(10)]
    memset = event("gpu_memset", "Memset (Device)", 1200, 10, 5, stream=7, bytes=64)
    arrow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "ts": 1100.0, "bp": "e"}
    found = counted(activity(*launches, *graph, *ran, memset, arrow, steps=2))
    assert found.keys() <= set(COUNTER_NAMES)
    names = ("kernel_launches", "graph_launches", "kernels", "memsets", "streams", "synchronizing_calls")
    assert [found[name] for name in names] == [2, 0.5, 5, 0.5, 2, 0]
    assert found["api_ms"] == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("kind", "direction", "pageable"),
    [
        ("HtoD (Pageable -> Device)", "host_to_device", 1),
        ("HtoD (Pinned -> Device)", "host_to_device", 0),
        ("DtoH (Device -> Pageable)", "device_to_host", 1),
        ("DtoD (Device -> Device)", "device_to_device", 0),
    ],
)
def test_copies_by_direction_and_by_the_memory_of_the_host(kind: str, direction: str, pageable: int) -> None:
    calls = [call("cudaMemcpyAsync", number) for number in (1, 2)]
    copies = [copy(kind, number, 1200 + number, 100, bytes=4096) for number in (1, 2)]  # one under the other
    found = counted(activity(*calls, *copies, steps=2))
    ends = ("_copies", "_bytes", "to_device_ms", "to_host_ms")
    counts = {name: value for name, value in found.items() if name.endswith(ends) and value}
    expected = {f"{direction}_copies": 1, f"{direction}_bytes": 4096, f"{direction}_ms": 0.1}
    assert counts == (expected | {"pageable_copies": 1} if pageable else expected)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        *((f"cuda{place}Synchronize", 1) for place in ("Device", "Stream", "Event")),
        *((f"cu{place}Synchronize", 1) for place in ("Stream", "Ctx")),
        ("cudaMemcpy", 1),
        ("cudaMemcpy2D", 1),
        ("cudaMemset", 1),
        ("cuMemcpyDtoH_v2", 1),
        ("cudaMalloc", 1),
        ("cudaFree", 1),
        *((f"cuda{name}", 0) for name in ("MemcpyAsync", "Memcpy2DAsync", "MemsetAsync", "FreeAsync", "LaunchKernel")),
        *((name, 0) for name in ("cuMemcpyHtoDAsync_v2", "cudaStreamWaitEvent", "cudaEventQuery", "cudaEventRecord")),
    ],
)
def test_calls_that_block_the_host(name: str, blocks: int) -> None:
    assert counted(activity(call(name, 1)))["synchronizing_calls"] == blocks


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([(0, 10)], 0.0),
        ([(20, 40)], 1.0),  # kernels run in 20 to 40 and in 60 to 80
        ([(10, 30)], 0.5),
        ([(30, 70)], 0.5),
        ([(0, 100)], 0.4),
        ([(0, 10), (20, 30)], 0.5),
        ([(20, 30), (25, 35)], 1.0),  # two copies at once count once
    ],
)
def test_overlap_is_the_share_of_copying_under_which_a_kernel_ran(copies, expected) -> None:
    kernels = [kernel(1, ts=5020, dur=20), kernel(1, ts=5060, dur=20), kernel(1, ts=5065, dur=5)]
    moved = [copy("HtoD (Pinned -> Device)", 2, ts=5000 + start, dur=end - start) for start, end in copies]
    found = counted(activity(call("cudaLaunchKernel", 1), call("cudaMemcpyAsync", 2), *kernels, *moved))
    assert found["overlap_fraction"] == pytest.approx(expected)


def test_the_longest_kernels_are_fifteen_for_every_step() -> None:
    durations = [1000.0] * 30 + [1.0] * 70
    launches, kernels = [call("cudaGraphLaunch", 1)], [kernel(1, dur=dur) for dur in reversed(durations)]
    assert counted(activity(*launches, *kernels, steps=2))["longest_kernels_mean_ms"] == 1.0
    assert counted(activity(*launches, *kernels[-3:], steps=2))["longest_kernels_mean_ms"] == 1.0
    assert counted(activity(*launches, *kernels, steps=4))["longest_kernels_mean_ms"] == pytest.approx(0.5005)


# A kernel's name, shortened -> whether it runs on tensor cores, and whether it is PyTorch's own.
KERNELS = {
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_warpgroupsize1x1x1": (1, 0),
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_stage5_warpsize2x2x1_tensor16x8x8": (1, 0),
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_128x128_32x4_nhwc>(...)": (1, 0),
    "void cutlass::device_kernel<...cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4, ...>...>": (1, 0),
    "void xmma_new::gemm::kernel<...Kernel_traits<...Ampere_hmma_fp16_traits<...>>>": (1, 0),
    "nvjet_tst_64x8_64x16_1x4_h_bz_splitK_TNN": (1, 0),
    "volta_h884gemm_128x64_ldg8_nn": (1, 0),
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x128x8_stage3_ffma": (0, 0),
    "ampere_sgemm_128x64_tn": (0, 0),
    "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false, ...>(...)": (0, 0),
    "void at_::helper()": (0, 0),
    "triton_per_fused_add_mean_884": (0, 1),  # the last number only tells one kernel from the next
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, ...>(...)": (0, 1),
    "void (anonymous namespace)::max_pool_forward_nhwc<c10::Half, int>(...)": (0, 1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_on_tensor_cores_and_of_the_framework_are_known_by_their_names(name: str) -> None:
    found = counted(activity(call("cudaLaunchKernel", 1), kernel(1, name=name)))
    assert (found["tensor_core_kernels"], found["framework_kernels"]) == KERNELS[name]


@pytest.mark.parametrize(
    "other",
    [
        [call("cudaGraphLaunch", 1), kernel(1)],  # the same kernel, launched by a graph
        [call("cudaLaunchKernel", 1), kernel(1), kernel(1)],
        [call("cudaLaunchKernel", 1), kernel(1), call("cudaMemcpyAsync", 2), copy("HtoD (Pinned -> Device)", 2)],
        [call("cudaLaunchKernel", 1), kernel(1), call("cudaStreamSynchronize", 2)],
        [call("cudaLaunchKernel", 1), kernel(1), kernel(1, stream=8)],
    ],
)
def test_other_launches_kernels_copies_waits_or_streams_have_another_signature(other: list[Event]) -> None:
    two = [kernel(1), kernel(1, name="relu")]
    one = signature(activity(call("cudaLaunchKernel", 1), *two))
    assert one == signature(activity(call("cudaLaunchKernel", 1), *two[::-1]))
    assert one != signature(activity(*other, two[1]))


def test_communication_is_exposed_while_no_other_kernel_runs() -> None:
    calls = [call("cudaLaunchKernel", number) for number in (1, 2, 3)]
    compute, hidden = kernel(1, ts=1000, dur=100), kernel(2, ts=1050, dur=30, name="ncclDevKernel_AllReduce", stream=8)
    late = kernel(3, ts=1090, dur=60, name="ncclDevKernel_AllReduce", stream=8)
    assert counted(activity(*calls, compute, hidden, late))["exposed_communication"] == pytest.approx(50 / 150)
    assert counted(activity(*calls, compute, hidden))["exposed_communication"] == 0
    assert "exposed_communication" not in counted(activity(*calls, compute))


def test_windows_of_one_trace_are_read_apart() -> None:
    second = {**WINDOW_EVENT, "name": "second", "ts": 3000.0}
    events = [
        {**WINDOW_EVENT, "cat": "gpu_user_annotation", "ts": 0.0, "dur": 9e9},  # the mark of a GPU is no window
        WINDOW_EVENT,
        second,
        call("cudaLaunchKernel", 1),
        call("cudaGraphLaunch", 2, ts=3100),
        kernel(1),
        kernel(2),
    ]
    calls = [[e["name"] for e in read_activity(events, 1, name).calls] for name in (WINDOW, "second")]
    assert calls == [["cudaLaunchKernel"], ["cudaGraphLaunch"]]


@pytest.mark.parametrize(
    ("events", "lost"),
    [
        ([], False),
        ([call("cudaMemcpyAsync", 1)], False),
        ([call("cudaLaunchKernel", 1)], True),
        ([call("cudaGraphLaunch", 1)], True),
        ([call("cudaLaunchKernel", 1), kernel(1)], False),
        ([call("cudaLaunchKernel", 1), call("cudaLaunchKernel", 2), kernel(1)], True),
        # what is launched while a graph is captured runs later
        ([call("cudaStreamBeginCapture_v10000", 9), *[call("cudaLaunchKernel", 1)] * 3, kernel(1)], False),
        ([call("cudaStreamBeginCapture_v10000", 9), *[call("cudaLaunchKernel", 1)] * 3], True),
    ],
)
def test_launches_without_kernels_are_a_profiler_that_was_not_attached(events: list[Event], lost: bool) -> None:
    assert lost_kernels(activity(*events)) is lost


def test_waiting_until_a_pipeline_is_full_again_is_no_steps_wait() -> None:
    filling = {**WINDOW_EVENT, "name": f"{FILLING} {WINDOW}", "ts": 1900.0, "dur": 100.0}
    waits = [call("cudaStreamSynchronize", number, ts) for number, ts in enumerate((1100.0, 1950.0), 1)]
    found = activity(filling, *waits, call("cudaLaunchKernel", 3, 1960.0), kernel(3, 1970.0))
    assert counted(found)["synchronizing_calls"] == 1
    assert counted(found)["kernels"] == 1


def test_only_a_thread_that_steps_or_runs_its_backward_pass_is_said_to_wait() -> None:
    """Threads of a pipeline wait for the device as their work, and as often as it happens."""
    stepping = {**WINDOW_EVENT, "tid": 7}
    node = {**event("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 1100.0, 5.0, 0), "tid": 8}
    waits = [{**call("cudaStreamSynchronize", number), "tid": tid} for number, tid in enumerate((7, 8, 9, 9), 1)]
    assert counted(read_activity([stepping, node, *waits], 1))["synchronizing_calls"] == 2


def test_kernels_of_one_name_are_one_part_per_step_and_the_longest_comes_first() -> None:
    kernels = [kernel(1, 1200, 10, "a"), kernel(2, 1300, 10, "a"), kernel(3, 1400, 40, "b")]
    found = step_profile(activity(*(call("cudaLaunchKernel", number) for number in (1, 2, 3)), *kernels, steps=2))
    assert list(found.kernels.items()) == [("b", (0.5, 0.02)), ("a", (1.0, 0.01))]
    assert found.kernel_ms == pytest.approx(0.03)


def test_overlapping_kernels_take_the_time_in_which_any_runs_and_copies_what_they_add() -> None:
    events = [kernel(1, 1200, 100), kernel(2, 1250, 100, stream=8), copy("HtoD (Pinned -> Device)", 3, 1300, 100)]
    found = step_profile(activity(*(call("cudaLaunchKernel", number) for number in (1, 2, 3)), *events))
    assert (found.kernel_ms, found.copy_ms) == (pytest.approx(0.15), pytest.approx(0.05))
    assert found.copies == {"Memcpy HtoD (Pinned -> Device)": (1.0, 0.1)}


def test_what_the_join_adds_belongs_to_no_step() -> None:
    join = {**WINDOW_EVENT, "name": f"{JOIN} {WINDOW}", "ts": 3000.0}
    late = [call("cudaLaunchKernel", 9, ts=3100.0), kernel(9, ts=3200.0, dur=50.0, name="spin")]
    found = step_profile(read_activity([WINDOW_EVENT, join, call("cudaLaunchKernel", 1), kernel(1), *late], steps=5))
    assert found.after == {"spin": (1.0, 0.05)}
    assert list(found.kernels) == ["k"]


def test_on_a_cpu_an_operator_has_the_time_that_its_callees_do_not() -> None:
    operators = [("linear", 1100, 100, 1), ("addmm", 1110, 80, 1), ("copy", 1120, 10, 1), ("relu", 1300, 20, 1)]
    events = [
        {**event("cpu_op", name, ts, dur, 0), "tid": tid} for name, ts, dur, tid in (*operators, ("relu", 1100, 40, 2))
    ]
    found = step_profile(activity(*events))
    assert found.kernels == {"addmm": (1, 0.07), "relu": (2, 0.06), "linear": (1, 0.02), "copy": (1, 0.01)}
    assert found.kernel_ms == pytest.approx(0.16)


def test_a_long_list_ends_with_its_rest_and_a_long_name_is_cut() -> None:
    names = [f"k{number:03d}" for number in range(MOST_PARTS + 3)]
    events = [kernel(number, dur=100.0 - number, name=name) for number, name in enumerate(names, 1)]
    found = step_profile(activity(*(call("cudaLaunchKernel", number) for number in range(1, 100)), *events))
    assert list(found.kernels) == [*names[:MOST_PARTS], OTHERS]
    assert found.kernels[OTHERS] == (3, pytest.approx(0.039 + 0.038 + 0.037))
    (cut,) = step_profile(activity(call("cudaLaunchKernel", 1), kernel(1, name="x" * 999))).kernels
    assert cut == "x" * LONGEST_NAME


def test_every_time_can_be_told_in_another_pace() -> None:
    part = {"a": (2.0, 0.5)}
    slower = StepProfile(part, part, part, part, part, 1.0, 2.0).longer(3.0)
    assert slower == StepProfile(*[{"a": (2.0, 1.5)}] * 5, 3.0, 6.0)


def annotation(kind: str, name: str, ts: float, dur: float) -> Event:
    return {"ph": "X", "cat": kind, "name": name, "ts": ts, "dur": dur, "args": {}}


def test_stages_come_in_their_order_and_as_long_as_the_device_works_on_them() -> None:
    ran = [kernel(1, ts=1200, dur=100), kernel(2, ts=1300, dur=600)]
    on_device = [
        annotation("gpu_user_annotation", "forward", 1700, 50),
        annotation("gpu_user_annotation", "copy", 1200, 100),
        annotation("gpu_user_annotation", "copy", 1500, 100),
        annotation("gpu_user_annotation", WINDOW, 1200, 700),  # ours
        annotation("gpu_user_annotation", "copy", 9000, 100),  # of another side
    ]
    host = annotation("user_annotation", "forward", 1100, 5)
    launches = [call("cudaLaunchKernel", number) for number in (1, 2)]
    found = step_profile(activity(host, *launches, *ran, *on_device, steps=2))
    assert list(found.stages.items()) == [("copy", (1.0, 0.1)), ("forward", (0.5, 0.025))]
    assert step_profile(activity(host, annotation("user_annotation", "late", 2100, 5))).stages == {
        "forward": (1, 0.005)
    }


RAN = {"gemm": 1.0, "cudaLaunchKernel": 1.0}


@pytest.mark.parametrize(
    ("fractions", "other", "same"),
    [
        ((0.9, 0.9), RAN, True),
        ((LEAST_ACTIVE, 0.001), RAN, True),
        ((0.001, 0.001), RAN, False),
        ((None, None), RAN, True),
        ((0.9, 0.9), {**RAN, "relu": 1.0}, False),
    ],
    ids=["a busy device", "one busy enough", "an idle device", "no device", "another kernel"],
)
def test_equal_kernels_say_that_the_work_is_the_same_where_they_take_the_time(
    fractions: tuple[float | None, float | None], other: dict[str, float], same: bool
) -> None:
    active = [{} if fraction is None else {"active_fraction": fraction} for fraction in fractions]
    one, two = (CountedSide(*side, StepProfile(), ran) for side, ran in zip(zip(active), (RAN, other), strict=True))
    assert one.same_work(two) is same

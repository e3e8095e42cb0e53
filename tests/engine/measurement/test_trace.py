"""Counting from a profiler's trace: small traces by hand, in the shape that torch.profiler exports."""

from typing import Any

import pytest

from gpugate.counter_names import COUNTER_NAMES
from gpugate.measurement.trace import FILLING, WINDOW, Activity, Event, lost_kernels, read_activity, signature
from gpugate.measurement.trace import counters as counted

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


def test_a_range_of_that_name_on_the_device_is_not_the_window() -> None:
    on_device = {**WINDOW_EVENT, "cat": "gpu_user_annotation", "ts": 0.0, "dur": 9e9}
    found = read_activity([on_device, WINDOW_EVENT, call("cudaLaunchKernel", 1, ts=500)], 1)
    assert found.calls == []


def test_device_work_belongs_to_the_window_by_the_call_that_caused_it() -> None:
    found = activity(
        call("cudaLaunchKernel", 1, ts=999.0),
        kernel(1, ts=1500),  # launched before, ran inside
        call("cudaLaunchKernel", 2, ts=2000.0),
        kernel(2, ts=5000),  # launched inside, ran after
        call("cudaLaunchKernel", 3, ts=2001.0),
        kernel(3, ts=2010),
    )
    assert [e["args"]["correlation"] for e in (*found.calls, *found.kernels)] == [2, 2]


def test_flow_arrows_and_names_of_threads_are_no_work() -> None:
    arrow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "ts": 1100.0, "bp": "e"}
    metadata = {"ph": "M", "name": "process_name", "ts": 1100.0, "args": {"name": "python"}}
    found = activity(arrow, metadata, call("cudaLaunchKernel", 1), kernel(1))
    assert (len(found.calls), len(found.kernels)) == (1, 1)


def test_operators_of_the_window_are_kept() -> None:
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1100.0, "dur": 1.0, "args": {"External id": 1}}
    assert [e["ts"] for e in activity(operator, {**operator, "ts": 999.0}).operators] == [1100.0]


def test_every_counter_has_a_known_name() -> None:
    assert set(counted(activity())) <= set(COUNTER_NAMES)
    assert set(counted(activity()).values()) == {0.0}


def test_a_graph_launch_is_one_call_and_many_kernels() -> None:
    kernels = [kernel(1, ts=1200 + 20 * index) for index in range(5)]
    found = counted(activity(call("cudaGraphLaunch", 1), *kernels))
    assert (found["graph_launches"], found["kernel_launches"], found["kernels"]) == (1, 0, 5)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int> >(int)", 1),
        ("triton_poi_fused_max_pool2d_with_indices_0", 1),
        ("void at_::helper()", 0),
        ("sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", 0),
        ("void cudnn::ops::nchwToNhwcKernel<float>(int)", 0),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", 0),
    ],
)
def test_kernels_of_the_framework_are_told_from_those_of_libraries(name: str, own: int) -> None:
    found = counted(activity(call("cudaLaunchKernel", 1), {**kernel(1), "name": name}))
    assert (found["kernels"], found["framework_kernels"]) == (1, own)


@pytest.mark.parametrize("prefix", ["cudaLaunch", "cuLaunch"])
@pytest.mark.parametrize("name", ["Kernel", "KernelEx", "KernelExC", "CooperativeKernel"])
def test_launch_calls_of_the_runtime_and_the_driver(prefix: str, name: str) -> None:
    name = prefix + name
    assert counted(activity(call(name, 1, category="cuda_driver")))["kernel_launches"] == 1


def test_counts_are_per_step_and_api_time_is_in_milliseconds() -> None:
    launches = [call("cudaLaunchKernel", index, ts=1100 + index, dur=20.0) for index in range(6)]
    found = counted(activity(*launches, *(kernel(index) for index in range(6)), steps=4))
    assert (found["kernel_launches"], found["kernels"], found["api_ms"]) == (1.5, 1.5, 0.03)


@pytest.mark.parametrize(
    ("kind", "direction", "pageable"),
    [
        ("HtoD (Pageable -> Device)", "host_to_device", 1),
        ("HtoD (Pinned -> Device)", "host_to_device", 0),
        ("DtoH (Device -> Pageable)", "device_to_host", 1),
        ("DtoH (Device -> Pinned)", "device_to_host", 0),
        ("DtoD (Device -> Device)", "device_to_device", 0),
    ],
)
def test_copies_by_direction_and_by_the_memory_of_the_host(kind: str, direction: str, pageable: int) -> None:
    found = counted(activity(call("cudaMemcpyAsync", 1), copy(kind, 1, bytes=4096)))
    counts = {name: value for name, value in found.items() if name.endswith(("_copies", "_bytes")) and value}
    expected = {f"{direction}_copies": 1, f"{direction}_bytes": 4096}
    assert counts == (expected | {"pageable_copies": 1} if pageable else expected)


def test_times_of_kernels_and_copies_are_sums_per_step_also_where_they_overlap() -> None:
    events = [kernel(1, 1200, 100), kernel(2, 1250, 100, stream=8), copy("HtoD (Pinned -> Device)", 3, 1300, 40)]
    events += [copy("DtoH (Device -> Pinned)", 4, 1300, 6), copy("DtoD (Device -> Device)", 5, 1300, 2)]
    found = counted(activity(*(call("cudaLaunchKernel", number) for number in range(1, 6)), *events, steps=2))
    assert {
        name: found[f"{name}_ms"] for name in ("kernel", "host_to_device", "device_to_host", "device_to_device")
    } == {
        "kernel": 0.1,
        "host_to_device": 0.02,
        "device_to_host": 0.003,
        "device_to_device": 0.001,
    }


def test_memsets_are_counted_apart() -> None:
    memset = event("gpu_memset", "Memset (Device)", 1200, 10, 1, stream=7, bytes=64)
    found = counted(activity(call("cudaMemsetAsync", 1), memset))
    assert (found["memsets"], found["kernels"], found["synchronizing_calls"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("cudaDeviceSynchronize", 1),
        ("cudaStreamSynchronize", 1),
        ("cudaEventSynchronize", 1),
        ("cuStreamSynchronize", 1),
        ("cuCtxSynchronize", 1),
        ("cudaMemcpy", 1),
        ("cudaMemcpy2D", 1),
        ("cudaMemset", 1),
        ("cuMemcpyDtoH_v2", 1),
        ("cudaMalloc", 1),
        ("cudaFree", 1),
        ("cudaMemcpyAsync", 0),
        ("cudaMemcpy2DAsync", 0),
        ("cuMemcpyHtoDAsync_v2", 0),
        ("cudaMemsetAsync", 0),
        ("cudaFreeAsync", 0),
        ("cudaStreamWaitEvent", 0),
        ("cudaEventQuery", 0),
        ("cudaEventRecord", 0),
        ("cudaLaunchKernel", 0),
    ],
)
def test_calls_that_block_the_host(name: str, blocks: int) -> None:
    assert counted(activity(call(name, 1)))["synchronizing_calls"] == blocks


def test_streams_are_those_that_ran_something() -> None:
    launches = [call("cudaLaunchKernel", index) for index in (1, 2)]
    copied = copy("HtoD (Pinned -> Device)", 3, stream=13)
    found = counted(activity(*launches, call("cudaMemcpyAsync", 3), kernel(1), kernel(2), copied))
    assert found["streams"] == 2


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 10)], 1.0),
        ([(0, 10), (10, 20)], 1.0),
        ([(0, 10), (30, 40)], 0.5),
        ([(0, 30), (10, 20)], 1.0),  # one inside the other
        ([(0, 20), (10, 25), (75, 100)], 0.5),  # overlapping
        ([(75, 100), (10, 25), (0, 20)], 0.5),  # in any order
    ],
)
def test_active_is_the_union_of_device_activity_over_its_extent(spans, expected) -> None:
    events = [kernel(index, ts=5000 + start, dur=end - start) for index, (start, end) in enumerate(spans)]
    launches = [call("cudaLaunchKernel", index) for index in range(len(spans))]
    assert counted(activity(*launches, *events))["active_fraction"] == pytest.approx(expected)


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


ON_TENSOR_CORES = [
    "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute"
    "_segment_k_off_kernel__5x_cudnn",
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_warpgroupsize1x1x1_g1_execute",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor"
    "16x8x8_execute_kernel__5x_cudnn",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_stage5_warpsize2x2x1_tensor16x8x8_execute_kernel",
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1_execute_kernel__5x_cublas",
    "cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_128x128_32x4_nhwc_align8>(...)",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_nn_align8>(...)",
    "void cutlass::device_kernel<...cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4, ...>...>",
    "void xmma_new::gemm::kernel<xmma_new::implicit_gemm::fprop::Kernel_traits<...Ampere_hmma_fp16_traits<...>>>",
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT",
    "nvjet_tst_64x8_64x16_1x4_h_bz_splitK_TNN",
    "nvjet_sm90_hss_320x128_64x3_1x2_h_bz_coopB_NNT",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn",
    "ampere_h16816gemm_128x128_ldg8_stages_32x5_tn",
    "turing_fp16_s1688cudnn_fp16_256x64_ldg8_relu_f2f_exp_medium_nhwc_tn_v1",
    "volta_h884gemm_128x64_ldg8_nn",
]
ON_PLAIN_CORES = [
    "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x128x8_stage3_warpsize2x2x1_g1_ffma"
    "_aligna4_alignc4_execute_kernel__5x_cudnn",
    "sm90_xmma_gemm_f32f32_f32f32_f32",
    "ampere_sgemm_128x64_tn",
    "ampere_scudnn_128x64_relu_xregs_large_nn_v1",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(...::Params)",
    "triton_poi_fused_relu_0",
    "triton_per_fused_add_mean_884",  # the last number only tells one kernel from the next
    "triton_poi_fused_max_pool2d_with_indices_1688",
    "triton_poi_fused_convert_f16_relu_3",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<...> >(...)",
    "void at::native::elementwise_kernel<128, 4, at::native::...bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)...>",
    "void at::native::(anonymous namespace)::max_pool_forward_nhwc<c10::Half, int>(...)",
    "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false, false, ...>(...)",
    "void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024, cublasGemvParamsEx<...>>(...)",
    "void internal::gemvx::kernel<int, int, __half, __half, __half, float, false, true, true, false, 7, ...>(...)",
    "void cublasLt::splitKreduce_kernel<32, 16, int, __half, __half, float, false, true, false>(...)",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>(...)",
    "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>(...)",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(...)",
]


@pytest.mark.parametrize("name", ON_TENSOR_CORES)
def test_kernels_on_tensor_cores(name: str) -> None:
    assert counted(activity(call("cudaLaunchKernel", 1), kernel(1, name=name)))["tensor_core_kernels"] == 1


@pytest.mark.parametrize("name", ON_PLAIN_CORES)
def test_kernels_on_plain_cores(name: str) -> None:
    assert counted(activity(call("cudaLaunchKernel", 1), kernel(1, name=name)))["tensor_core_kernels"] == 0


def test_equal_work_in_another_order_has_an_equal_signature() -> None:
    launches = [call("cudaLaunchKernel", index, ts=1100 + index) for index in (1, 2)]
    one = activity(*launches, kernel(1, name="gemm"), kernel(2, name="relu"))
    assert signature(one) == signature(activity(*launches, kernel(2, name="relu"), kernel(1, name="gemm")))
    assert signature(one) != signature(activity(*launches, kernel(1, name="gemm"), kernel(2, name="gemm")))


@pytest.mark.parametrize(
    "other",
    [
        [call("cudaGraphLaunch", 1), kernel(1)],  # the same kernel, launched by a graph
        [call("cudaLaunchKernel", 1), kernel(1), kernel(1)],
        [call("cudaLaunchKernel", 1), kernel(1), call("cudaMemcpyAsync", 2), copy("HtoD (Pinned -> Device)", 2)],
        [call("cudaLaunchKernel", 1), kernel(1), call("cudaStreamSynchronize", 2)],
    ],
)
def test_other_launches_kernels_copies_or_waits_have_another_signature(other: list[Event]) -> None:
    assert signature(activity(call("cudaLaunchKernel", 1), kernel(1))) != signature(activity(*other))


def test_the_same_kernels_on_more_streams_have_another_signature() -> None:
    launches = [call("cudaLaunchKernel", 1), call("cudaLaunchKernel", 2)]
    in_a_row = activity(*launches, kernel(1, stream=7), kernel(2, stream=7))
    assert signature(in_a_row) == signature(activity(*launches, kernel(1, stream=8), kernel(2, stream=8)))
    assert signature(in_a_row) != signature(activity(*launches, kernel(1, stream=7), kernel(2, stream=8)))


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
    ],
)
def test_launches_without_kernels_are_a_profiler_that_was_not_attached(events: list[Event], lost: bool) -> None:
    assert lost_kernels(activity(*events)) is lost


def test_only_the_thread_that_steps_is_said_to_wait() -> None:
    """Threads of a pipeline wait for the device as their work, and as often as it happens."""
    stepping = {**WINDOW_EVENT, "tid": 7}
    waits = [{**call("cudaEventSynchronize", number), "tid": tid} for number, tid in enumerate((7, 8, 8, 9))]
    assert counted(read_activity([stepping, *waits], 1))["synchronizing_calls"] == 1


def test_waiting_until_a_pipeline_is_full_again_is_no_steps_wait() -> None:
    filling = {**WINDOW_EVENT, "name": f"{FILLING} {WINDOW}", "ts": 1900.0, "dur": 100.0}
    waits = [call("cudaStreamSynchronize", number, ts) for number, ts in enumerate((1100.0, 1950.0), 1)]
    found = activity(filling, *waits, call("cudaLaunchKernel", 3, 1960.0), kernel(3, 1970.0))
    assert counted(found)["synchronizing_calls"] == 1
    assert counted(found)["kernels"] == 1


def test_one_kernel_lost_of_two_launched_is_seen() -> None:
    launches = [call("cudaLaunchKernel", number) for number in (1, 2)]
    assert lost_kernels(activity(*launches, kernel(1)))
    assert not lost_kernels(activity(*launches, kernel(1), kernel(2)))


def test_a_thread_that_runs_a_backward_pass_is_one_that_steps() -> None:
    stepping = {**WINDOW_EVENT, "tid": 7}
    node = {**event("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 1100.0, 5.0, 0), "tid": 8}
    waits = [{**call("cudaStreamSynchronize", number), "tid": tid} for number, tid in enumerate((8, 9), 1)]
    assert counted(read_activity([stepping, node, *waits], 1))["synchronizing_calls"] == 1


def test_what_is_launched_while_a_graph_is_captured_is_not_lost() -> None:
    launches = [call("cudaLaunchKernel", number) for number in (1, 2, 3)]
    assert not lost_kernels(activity(call("cudaStreamBeginCapture_v10000", 9), *launches, kernel(1)))
    assert lost_kernels(activity(call("cudaStreamBeginCapture_v10000", 9), *launches))

"""The summary of an export of made-up events, whose every figure is known."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.profiling.device_activity import Active
from gpugate.profiling.export_schema import ProfileError
from gpugate.profiling.nsight_tools import RuleFinding
from gpugate.profiling.summary import FILE, ProfileSummary, read_summary, summarize, write_summary
from tests.support.profile_exports import (
    BACKWARD,
    DEVICE,
    DEVICE_TO_HOST,
    DOMAIN,
    HOST_TO_DEVICE,
    LOADER,
    PAGEABLE,
    PINNED,
    PROCESS,
    ExportWriter,
)

MS = 1_000_000


@pytest.fixture
def writer(tmp_path: Path) -> ExportWriter:
    return ExportWriter(tmp_path / "report.sqlite")


def two_steps(writer: ExportWriter) -> ExportWriter:
    """From 1 to 11 ms and from 11 to 21 ms, one launch in each, whose kernels run for 2 and 4 ms."""
    writer.step(1 * MS, 11 * MS)
    writer.step(11 * MS, 21 * MS)
    writer.launch(3 * MS, 5 * MS)
    writer.launch(13 * MS, 17 * MS)
    return writer


def summary_of(writer: ExportWriter, steps: int | None = None) -> ProfileSummary:
    return summarize(writer.written(), steps)


def test_steps_carry_their_items_and_the_report_its_machine(writer: ExportWriter) -> None:
    found = summary_of(two_steps(writer))
    assert (found.steps, found.items, found.span_ms, found.gpu) == (2, 8, 20, "NVIDIA H200")
    assert (found.product, found.schema, found.notes) == ("2026.1.1.204", "3.24.14", ())


def test_work_belongs_to_the_steps_by_the_call_that_caused_it(writer: ExportWriter) -> None:
    two_steps(writer)
    before = writer.call("cudaLaunchKernel_v7000", 0, 100)
    writer.kernel(before, 4 * MS, 5 * MS)  # launched before, ran inside
    late = writer.call("cudaLaunchKernel_v7000", 21 * MS, 21 * MS + 100)  # at the last moment
    writer.kernel(late, 30 * MS, 31 * MS)
    after = writer.call("cudaLaunchKernel_v7000", 21 * MS + 1, 22 * MS)
    writer.kernel(after, 20 * MS, 21 * MS)
    found = summary_of(writer)
    assert found.counters["kernel_launches"] * 2 == found.counters["kernels"] * 2 == 3
    assert found.active.window_ms == 28


def test_a_started_range_around_the_steps_is_the_window(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.range("case", 1 * MS, 25 * MS, eventType=60)
    writer.range("other", 0, 90 * MS, domain=0, eventType=60)  # not of our domain
    writer.launch(24 * MS, 25 * MS)  # what a pipeline finishes
    writer.launch(28 * MS, 29 * MS)
    assert summary_of(writer).counters["kernels"] * 2 == 3


def test_another_process_with_the_same_correlation_ids_does_not_count(writer: ExportWriter) -> None:
    two_steps(writer)
    other = 2000 << 24
    writer.kernel(1, 6 * MS, 7 * MS, globalPid=other)
    writer.launch(8 * MS, 9 * MS, tid=other + 1, globalPid=other)
    assert summary_of(writer).counters["kernels"] * 2 == 2


def test_a_range_called_step_of_another_domain_is_no_step(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.insert("NVTX_EVENTS", start=0, eventType=75, text="someone", globalTid=PROCESS, domainId=9)
    writer.range("step", 2 * MS, 3 * MS, domain=9)
    writer.range("step", 2 * MS, 3 * MS, domain=0)
    assert summary_of(writer).steps == 2


def test_a_domain_whose_creation_was_not_captured_is_taken_for_ours(tmp_path: Path) -> None:
    writer = ExportWriter(tmp_path / "report.sqlite", domain=None)
    assert summary_of(two_steps(writer)).steps == 2


def test_kernels_are_told_by_name_with_the_shape_they_spend_most_time_in(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.launch(5 * MS, 6 * MS, grid=4)
    writer.launch(18 * MS, 20 * MS, name="cuLaunchKernelEx", grid=2)
    correlation = writer.call("cuLaunchKernel", 2 * MS, 2 * MS + 10)
    writer.kernel(correlation, 20 * MS, 23 * MS, "sm90_xmma_gemm_f16f16_f32(Params)", grid=132)
    add, gemm = summary_of(writer).kernels
    assert (add.name, add.ms, add.share, add.count, add.mean_ms) == ("void at::native::add()", 9, 0.75, 4, 2.25)
    assert (add.grid, add.block, add.shapes, add.framework, add.tensor_cores) == (
        (8, 1, 1),
        (128, 1, 1),
        3,
        True,
        False,
    )
    assert (gemm.ms, gemm.grid, gemm.framework, gemm.tensor_cores) == (3, (132, 1, 1), False, True)


def test_calls_lose_their_versions_and_are_summed(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.call("cudaLaunchKernel_ptsz_v7000", 6 * MS, 8 * MS)
    writer.call("cudaGraphLaunch_v10000", 8 * MS, 9 * MS, tid=LOADER)
    found = {call.name: call for call in summary_of(writer).calls}
    launch = found["cudaLaunchKernel"]
    assert (launch.count, launch.ms, launch.longest_ms, launch.launch) == (3, 2.002, 2, True)
    assert (found["cudaGraphLaunch"].graph_launch, found["cudaGraphLaunch"].launch) == (True, False)


def test_copies_are_told_by_direction_and_kind_of_memory(writer: ExportWriter) -> None:
    two_steps(writer)
    for size, kinds in (
        (8_000_000, (HOST_TO_DEVICE, PAGEABLE, DEVICE)),
        (2_000_000, (HOST_TO_DEVICE, PINNED, DEVICE)),
        (1_000_000, (DEVICE_TO_HOST, DEVICE, PINNED)),
    ):
        correlation = writer.call("cudaMemcpyAsync_v3020", 6 * MS, 6 * MS + 10)
        writer.copy(correlation, 6 * MS, 6 * MS + size // 10, size, kinds)
    found = summary_of(writer)
    told = [(copy.direction, copy.source, copy.target, copy.bytes) for copy in found.copies]
    assert told == [
        ("host to device", "pageable", "device", 8_000_000),
        ("host to device", "pinned", "device", 2_000_000),
        ("device to host", "device", "pinned", 1_000_000),
    ]
    assert {copy.gb_per_s for copy in found.copies} == {10.0}
    assert found.counters["host_to_device_copies"] == 1
    assert found.counters["host_to_device_bytes"] == 5_000_000
    assert found.counters["pageable_copies"] == 0.5


def test_waits_say_from_which_range_and_thread_they_came(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.range("forward", 2 * MS, 8 * MS)
    writer.range("loss", 6 * MS, 7 * MS, domain=0)
    writer.thread(BACKWARD, "pt_autograd_0")
    for start, tid in ((5.5, None), (6.5, None), (8.5, None), (6.8, BACKWARD), (6.9, LOADER)):
        at = int(start * MS)
        writer.call("cudaStreamSynchronize_v3020", at, at + MS // 10, **({} if tid is None else {"tid": tid}))
    writer.call("cudaStreamWaitEvent_v3020", 6 * MS, 7 * MS)  # only the device waits
    found = summary_of(writer)
    told = {(wait.nvtx_range, wait.domain, wait.of_steps): wait.count for wait in found.waits}
    assert told == {
        ("forward", "gpugate", True): 1,
        ("loss", "", True): 2,  # one of them by the backward pass that it asked for
        ("step", "gpugate", True): 1,
        ("", "", False): 1,
    }
    assert found.counters["synchronizing_calls"] * 2 == 4


def test_no_copy_runs_under_a_kernel_by_the_error_of_a_sum() -> None:
    assert Active(647.3, 3 * 0.1, 0.1, 0.2, 0.3).overlap_ms == 0.0 != 0.1 + 0.2 - 0.3
    assert Active(10.0, 7.0, 5.0, 3.0, 7.0).overlap_ms == 1.0


def test_ranges_that_meet_do_not_contain_each_other(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.range("first", 2 * MS, 4 * MS)
    writer.range("second", 4 * MS, 6 * MS)
    writer.range("inner", 4 * MS, 5 * MS)
    writer.range("empty", 5 * MS, 5 * MS)
    for at in (3, 4, 5, 6):
        writer.call("cudaDeviceSynchronize_v3020", at * MS, at * MS + at)
    waits = {round(wait.ms * 1e6): wait.nvtx_range for wait in summary_of(writer).waits}
    assert waits == {3: "first", 4: "inner", 5: "second", 6: "step"}


def test_active_time_is_a_union_and_gaps_are_the_rest(writer: ExportWriter) -> None:
    two_steps(writer)  # kernels at 3..5 and 13..17 ms
    writer.launch(4 * MS, 6 * MS, streamId=8)
    correlation = writer.call("cudaMemcpyAsync_v3020", 5 * MS, 5 * MS + 10)
    writer.copy(correlation, 5 * MS, 9 * MS, 10, (HOST_TO_DEVICE, PINNED, DEVICE), streamId=9)
    found = summary_of(writer)
    active = found.active
    assert (active.window_ms, active.any_ms, active.kernel_ms, active.copy_ms) == (14, 10, 7, 4)
    assert (active.overlap_ms, active.idle_ms) == (1, 4)
    assert found.counters["overlap_fraction"] == 0.25
    assert found.counters["active_fraction"] == pytest.approx(10 / 14)
    assert [(gap.at_ms, gap.ms) for gap in found.gaps] == [(8, 4)]
    assert found.counters["streams"] == len(found.streams) == 3


def test_a_gap_says_what_the_host_that_ended_it_did(writer: ExportWriter) -> None:
    two_steps(writer)  # idle from 5 to 13 ms
    writer.range("wait for data", 6 * MS, 12 * MS)
    writer.call("cudaEventSynchronize_v3020", 4 * MS, 7 * MS)
    writer.call("cudaMalloc_v3020", 8 * MS, 9 * MS)
    writer.call("cudaMemcpyAsync_v3020", 6 * MS, 12 * MS, tid=LOADER)  # another thread
    writer.os_call("futex", 9 * MS, 12 * MS)
    writer.os_call("read", 12 * MS, 14 * MS)
    writer.os_call("poll", 5 * MS, 13 * MS, tid=LOADER)
    found = summary_of(writer)
    (gap,) = found.gaps
    assert (gap.ms, gap.nvtx_range, gap.call, gap.call_ms) == (8, "wait for data", "cudaEventSynchronize", 2)
    assert (gap.os_call, gap.os_call_ms) == ("futex", 3)
    idle = {one.call: one.ms for one in found.idle_while}
    assert idle == pytest.approx({"": 4.999, "cudaEventSynchronize": 2, "cudaMalloc": 1, "cudaLaunchKernel": 0.001})
    assert sum(idle.values()) == pytest.approx(found.active.idle_ms)


def test_ranges_are_projected_onto_the_gpu(writer: ExportWriter) -> None:
    writer.step(1 * MS, 11 * MS)
    writer.range("forward", 1 * MS, 3 * MS)
    writer.range("idle", 3 * MS, 4 * MS)
    for call_at, start, end in ((1.5, 2, 4), (2.5, 6, 10), (5, 12, 13)):
        correlation = writer.call("cudaLaunchKernel_v7000", int(call_at * MS), int(call_at * MS) + 10)
        writer.kernel(correlation, start * MS, end * MS)
    found = {one.name: one for one in summary_of(writer).ranges}
    forward, step, idle = found["forward"], found["step"], found["idle"]
    assert (forward.gpu_span_ms, forward.gpu_busy_ms, forward.activities) == (8, 6, 2)
    assert (forward.start_lag_ms, forward.end_lag_ms) == (1, 7)
    assert (step.gpu_span_ms, step.gpu_busy_ms, step.activities, step.end_lag_ms) == (11, 7, 3, 2)
    assert (idle.host_ms, idle.gpu_span_ms, idle.start_lag_ms) == (1, 0, None)


def test_ranges_of_two_domains_may_overlap(writer: ExportWriter) -> None:
    """Only those of one domain are nested."""
    writer.step(1 * MS, 11 * MS)
    writer.range("first", 2 * MS, 5 * MS)
    writer.range("second", 4 * MS, 8 * MS, domain=0)
    for call_at in (3, 4, 5, 8):
        writer.call("cudaStreamSynchronize_v3020", call_at * MS, call_at * MS + 10)
        writer.kernel(writer.call("cudaLaunchKernel_v7000", call_at * MS, call_at * MS + 10), 9 * MS, 10 * MS)
    found = summary_of(writer)
    assert {one.name: one.activities for one in found.ranges} == {"step": 4, "first": 2, "second": 2}
    assert {wait.nvtx_range: wait.count for wait in found.waits} == {"step": 1, "first": 1, "second": 2}


def test_a_backward_pass_stands_in_the_range_that_asked_for_it(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.thread(BACKWARD, "pt_autograd_0")
    writer.range("backward", 6 * MS, 8 * MS)
    writer.launch(7 * MS, 9 * MS, tid=BACKWARD)
    found = {one.name: one.activities for one in summary_of(writer).ranges}
    assert found == {"step": 3, "backward": 1}


def test_nodes_of_graphs_count_as_kernels(writer: ExportWriter) -> None:
    two_steps(writer)
    replay = writer.call("cudaGraphLaunch_v10000", 6 * MS, 6 * MS + 10)
    for node in (1, 2, 1):
        writer.kernel(replay, (6 + node) * MS, (7 + node) * MS, graphNodeId=node)
    found = summary_of(writer)
    assert (found.graphs.nodes, found.graphs.ran, found.graphs.ms, found.graphs.whole) == (2, 3, 3, 0)
    assert (found.counters["graph_launches"] * 2, found.counters["kernels"] * 2) == (1, 5)


def test_a_graph_recorded_whole_hides_counts_and_is_said_to(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.graph(writer.call("cudaGraphLaunch_v10000", 6 * MS, 6 * MS + 10), 6 * MS, 9 * MS)
    found = summary_of(writer)
    assert "kernels" not in found.counters
    assert found.counters["graph_launches"] == 0.5
    assert found.active.any_ms == 9
    assert found.notes[0].endswith("profile with --cuda-graph-trace=node")


def test_memory_is_told_by_kind_within_the_steps(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.allocation(0, 100)
    writer.allocation(2 * MS, 1000)
    writer.allocation(3 * MS, 400, frees=True)
    writer.allocation(4 * MS, 7, kind=PINNED)
    device, pinned = summary_of(writer).memory
    assert (device.kind, device.allocations, device.frees, device.allocated_bytes) == ("device", 1, 1, 1000)
    assert (device.freed_bytes, device.peak_bytes) == (400, 1100)
    assert (pinned.kind, pinned.allocations, pinned.peak_bytes) == ("pinned", 1, 7)


def test_a_report_without_steps_is_summarized_if_it_is_said_how_many_it_is(tmp_path: Path) -> None:
    writer = ExportWriter(tmp_path / "report.sqlite", domain=None)
    for at in (1, 2, 3, 4):
        writer.launch(at * MS, at * MS + 10)
    found = summary_of(writer, steps=2)
    assert found.counters["kernels"] == 2
    assert found.notes == ("it marks no steps: the whole report was taken for 2",)


def test_a_summary_survives_its_file(writer: ExportWriter, tmp_path: Path) -> None:
    two_steps(writer).range("forward", 2 * MS, 4 * MS, domain=DOMAIN)
    writer.call("cudaDeviceSynchronize_v3020", 6 * MS, 7 * MS)
    writer.allocation(2 * MS, 1000)
    correlation = writer.call("cudaMemcpyAsync_v3020", 7 * MS, 7 * MS + 10)
    writer.copy(correlation, 7 * MS, 7 * MS, 0, (HOST_TO_DEVICE, PINNED, DEVICE))  # of no time, so without a rate
    finding = RuleFinding("rule", "title", "advice", ("a", "b"), (("1", "2"),), 7)
    summary = replace(summary_of(writer), findings=(finding,))
    path = tmp_path / "profile.json"
    write_summary(path, summary)
    assert read_summary(path) == summary
    path.write_text(path.read_text().replace(f'"format_version": {FILE.version}', '"format_version": 99'))
    with pytest.raises(ProfileError, match=r"newer gpugate .* make the summary again"):
        read_summary(path)


@pytest.mark.parametrize(("field", "value"), [("steps", 0), ("span_ms", 0.0)])
def test_a_summary_of_nothing_is_none(writer: ExportWriter, tmp_path: Path, field: str, value: float) -> None:
    path = tmp_path / "profile.json"
    write_summary(path, summary_of(two_steps(writer)))
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ProfileError, match=rf"{field} is [0.]+, not greater than or equal to .*: make it again"):
        read_summary(path)


def test_what_touches_leaves_no_gap(writer: ExportWriter) -> None:
    writer.step(1 * MS, 11 * MS)
    for start in (3, 4, 6):
        writer.launch(start * MS, (start + 1) * MS)
    found = summary_of(writer)
    assert [(gap.at_ms, gap.ms) for gap in found.gaps] == [(4, 1)]
    assert (found.active.window_ms, found.active.any_ms, found.active.idle_ms) == (4, 3, 1)

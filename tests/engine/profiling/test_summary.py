"""The summary of exports: of made-up events, of a real one and of damaged ones; its words, and `gpugate profile`."""

import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.measurement.trace import counters
from gpugate.profiling import export
from gpugate.profiling.export import CapturedSteps, ProfileError, read_export
from gpugate.profiling.summary import NO_KERNEL, brief, list_tables, overview, render
from gpugate.report.terminal import render_text
from gpugate.workload.counter_names import COUNTER_NAMES
from tests.support.profile_exports import BACKWARD, DEVICE, HOST_TO_DEVICE, LOADER, MAIN, PAGEABLE, REAL, ExportWriter

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


def counted(writer: ExportWriter) -> dict[str, float]:
    return counters(read_export(writer.written()).activity)


def rows(found: CapturedSteps, title: str) -> list[tuple[str, ...]]:
    """The rows of one table of the summary; none where it is left out."""
    return [row for table in list_tables(found) if table.title == title for row in table.rows]


# --- steps and windows ------------------------------------------------------------------------------------------------


def test_work_belongs_to_the_steps_by_the_call_that_caused_it(writer: ExportWriter) -> None:
    two_steps(writer)
    before = writer.call("cudaLaunchKernel_v7000", 0, 100)
    writer.kernel(before, 4 * MS, 5 * MS)  # launched before, ran inside
    late = writer.call("cudaLaunchKernel_v7000", 21 * MS, 21 * MS + 100)  # at the last moment
    writer.kernel(late, 30 * MS, 31 * MS)
    after = writer.call("cudaLaunchKernel_v7000", 21 * MS + 1, 22 * MS)
    writer.kernel(after, 20 * MS, 21 * MS)
    found = counted(writer)
    assert found["kernel_launches"] * 2 == found["kernels"] * 2 == 3


def test_a_started_range_around_the_steps_is_the_window(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.range("case", 1 * MS, 25 * MS, eventType=60)
    writer.range("other", 0, 90 * MS, domain=0, eventType=60)  # not of our domain
    writer.launch(24 * MS, 25 * MS)  # what a pipeline finishes
    writer.launch(28 * MS, 29 * MS)
    path = writer.written()
    assert counters(read_export(path, 2, "case").activity)["kernels"] * 2 == 3
    with pytest.raises(ProfileError, match="it contains the steps of case and not of another: profile again"):
        read_export(path, 2, "another")
    with pytest.raises(ProfileError, match="contains 2 steps and not 3: profile again, its capture was cut off"):
        read_export(path, 3, "case")


def test_every_thread_of_the_process_counts_and_no_other_process_with_the_same_ids(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.launch(9 * MS, 10 * MS, tid=LOADER)
    other = 2000 << 24
    writer.kernel(1, 6 * MS, 7 * MS, globalPid=other)
    writer.launch(8 * MS, 9 * MS, tid=other + 1, globalPid=other)
    assert counted(writer)["kernels"] * 2 == 3


def test_a_domain_whose_creation_was_not_captured_is_taken_for_ours(tmp_path: Path) -> None:
    path = two_steps(ExportWriter(tmp_path / "report.sqlite", domain=None)).written()
    assert len(read_export(path).steps) == 2


# --- the work ---------------------------------------------------------------------------------------------------------


def test_waits_of_the_steps_have_their_innermost_range(writer: ExportWriter) -> None:
    two_steps(writer)
    writer.range("forward", 2 * MS, 8 * MS)
    writer.range("loss", 6 * MS, 7 * MS, domain=0)
    writer.range("next", 7 * MS, 8 * MS)  # begins where the one before ends
    writer.thread(BACKWARD, "pt_autograd_0")
    for start, tid in ((5.5, MAIN), (6.5, MAIN), (7, MAIN), (8.5, MAIN), (6.8, BACKWARD), (6.9, LOADER)):
        writer.call("cudaStreamSynchronize_v3020", int(start * MS), int((start + 0.1) * MS), tid)
    writer.call("cudaStreamWaitEvent_v3020", 6 * MS, 7 * MS)  # only the device waits
    waits = rows(read_export(writer.written()), "calls that wait for the device")
    assert {name.removeprefix("cudaStreamSynchronize in "): count for name, _, count, _ in waits} == {
        "forward": "0.5",
        "loss": "1",  # one of them by the backward pass that it asked for
        "next": "0.5",
        "step": "0.5",
    }


def test_ranges_are_projected_onto_the_gpu(writer: ExportWriter) -> None:
    writer.step(1 * MS, 11 * MS)
    writer.range("forward", 1 * MS, 3 * MS)
    writer.range("idle", 3 * MS, 4 * MS)
    writer.range("backward", 4 * MS, 6 * MS)
    writer.range("of the user", 4 * MS, 8 * MS, domain=0)  # overlaps another domain's
    writer.thread(BACKWARD, "pt_autograd_0")
    for call_at, start, end, tid in ((1.5, 2, 4, MAIN), (2.5, 6, 10, MAIN), (5, 12, 13, BACKWARD), (7, 14, 15, MAIN)):
        call = writer.call("cudaLaunchKernel_v7000", int(call_at * MS), int(call_at * MS) + 10, tid)
        writer.kernel(call, start * MS, end * MS)
    assert rows(read_export(writer.written()), "NVTX ranges") == [
        ("step", "1", "10.00 ms", "13.00 ms"),
        ("forward", "1", "2.00 ms", "8.00 ms"),
        ("of the user", "1", "4.00 ms", "3.00 ms"),
        ("backward", "1", "2.00 ms", "1.00 ms"),
        ("idle", "1", "1.00 ms", "0.0000 ms"),
    ]


def test_an_idle_time_has_the_calls_of_the_host_that_ended_it(writer: ExportWriter) -> None:
    two_steps(writer)  # idle from 5 to 13 ms
    for start, end in ((17 * MS, 17 * MS + 333), (17 * MS + 333, 17 * MS + 1666), (17 * MS + 1666, 18 * MS)):
        writer.launch(start, end)  # what touches leaves none, though floats of these us do not touch
    writer.range("wait for data", 6 * MS, 12 * MS)
    writer.call("cudaEventSynchronize_v3020", 4 * MS, 7 * MS)
    writer.call("cudaMalloc_v3020", 8 * MS, 9 * MS)
    writer.call("cudaMemcpyAsync_v3020", 6 * MS, 12 * MS, tid=LOADER)  # another thread
    (idle,) = rows(read_export(writer.written()), "longest times without GPU work")
    assert idle == ("wait for data", "4.00 ms", "8.00 ms", "cudaEventSynchronize 2.00 ms")


# --- a real report of an H200 -----------------------------------------------------------------------------------------


def of_real(sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"{REAL.as_uri()}?mode=ro", uri=True)) as real:
        return real.execute(sql).fetchall()


def test_a_real_report_is_read_whole() -> None:
    found = read_export(REAL, 5, "two-layer-net/all/cuda optimized")
    assert (found.product, found.gpu, len(found.steps)) == ("2025.3.2.0", "NVIDIA H200", 5)
    assert sum(step.items for step in found.steps) == 5 * 64
    # Of the range around the steps.
    assert (found.start, found.stop) == pytest.approx((7_788_588 / 1e3, 10_077_123 / 1e3))
    counted = {  # of the counting pass, as they stood in the baseline
        "kernel_launches": 0, "graph_launches": 1, "kernels": 6, "framework_kernels": 1, "tensor_core_kernels": 0,
        "memsets": 1, "synchronizing_calls": 0, "streams": 5, "pageable_copies": 0, "host_to_device_copies": 1,
        "device_to_host_copies": 1, "device_to_device_copies": 0, "host_to_device_bytes": 262_144,
        "device_to_host_bytes": 2560, "device_to_device_bytes": 0,
    }  # fmt: skip
    by_name = counters(found.activity)
    assert counted.items() <= by_name.items()
    assert set(by_name) <= set(COUNTER_NAMES)
    # Figures taken from its tables by hand. There is no cudaDeviceSynchronize, which ends the capture behind the steps.
    assert rows(found, "CUDA calls") == [
        ("cudaGraphLaunch", "0.200 ms", "1", "0.455 ms"),
        ("cudaEventQuery", "0.0084 ms", "1", "0.0198 ms"),
        ("cudaEventRecordWithFlags", "0.0060 ms", "1", "0.0079 ms"),
        ("cudaStreamIsCapturing", "0.0046 ms", "2", "0.0116 ms"),
    ]
    assert round(sum(kernel["dur"] for kernel in found.activity.kernels) * 1e3) == 144_639
    assert [row[:3] for row in rows(found, "copies")] == [
        ("HtoD (Pinned -> Device)", "1", "262.1 kB"),
        ("DtoH (Device -> Pinned)", "1", "2.56 kB"),
    ]
    assert [row[:2] for row in rows(found, "NVTX ranges")] == [("step", "1")]


def test_the_numbers_that_stand_for_words_are_those_of_nsys() -> None:
    memories = dict(of_real("SELECT id, label FROM ENUM_CUDA_MEM_KIND"))
    assert export.MEMORIES.items() <= memories.items()
    directions = dict(of_real("SELECT id, label FROM ENUM_CUDA_MEMCPY_OPER"))
    for kind, way in export.WAYS.items():
        source, target = str(directions[kind]).split("-to-")
        assert way == f"{source[0]}to{target[0]}"
    events = {label: event for event, label in of_real("SELECT id, label FROM ENUM_NSYS_EVENT_TYPE")}
    known = export.PUSH_POP, export.STARTED, export.DOMAIN_NAMED
    assert tuple(events[name] for name in ("NvtxPushPopRange", "NvtxStartEndRange", "NvtxDomainCreate")) == known


# --- what cannot be used ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("DELETE FROM NVTX_EVENTS WHERE eventType = 59", "contains no step (an NVTX range 'step' of the domain 'gpug"),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME", "no CUDA call begins in its steps: profile with --trace=cuda,nvtx"),
        ("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS SELECT 1", "recorded whole, without kernels: profile with"),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN correlationId TO c", "no such column: correlationId"),
        ("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET end = 'never'", "or export it again with `nsys export"),
    ],
)
def test_an_export_that_cannot_be_used_is_one_sentence(writer: ExportWriter, script: str, sentence: str) -> None:
    with closing(sqlite3.connect(two_steps(writer).written())) as connection:
        connection.executescript(script)
    with pytest.raises(ProfileError) as raised:
        read_export(writer.path)
    assert sentence in str(raised.value)
    assert str(writer.path) in str(raised.value)


@pytest.mark.parametrize("seed", [*range(20), 158, 170, 255])
def test_an_export_with_a_few_bytes_changed_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    chosen, content = random.Random(seed), bytearray(REAL.read_bytes())  # noqa: S311 no secret
    for _ in range(chosen.randint(1, 10)):
        content[chosen.randrange(len(content))] = chosen.randrange(256)
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(content)
    problem = str(path)
    try:
        render(read_export(path), 80)
    except ProfileError as error:
        problem = str(error)
    assert str(path) in problem
    assert "\n" not in problem


def test_a_report_without_kernels_and_texts_is_summarized_with_a_note(writer: ExportWriter) -> None:
    with closing(sqlite3.connect(two_steps(writer).written())) as connection:
        connection.executescript(
            "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; UPDATE StringIds SET value = CAST(x'ff61' AS TEXT)"
        )
        connection.executescript("UPDATE NVTX_EVENTS SET text = 'step' WHERE eventType = 59")
    found = read_export(writer.path)
    assert {table.title for table in list_tables(found)} == {"NVTX ranges", "CUDA calls"}
    assert overview(found)[-1] == NO_KERNEL


def test_the_export_is_never_written_and_its_path_may_look_like_a_uri(tmp_path: Path) -> None:
    folder = tmp_path / "a b?mode=rw#%20"
    folder.mkdir()
    path = two_steps(ExportWriter(folder / "report.sqlite")).written()
    before = path.read_bytes()
    assert len(read_export(path).steps) == 2
    assert path.read_bytes() == before
    assert [entry.name for entry in folder.iterdir()] == [path.name]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    writer = ExportWriter(tmp_path / "case.sqlite")
    for step in range(2):
        at = (1 + 10 * step) * MS
        writer.step(at, at + 10 * MS)
        writer.range("forward | [red]<b>", at, at + 5 * MS)
        writer.launch(at + MS, at + 3 * MS)
        writer.launch(at + 4 * MS, at + 5 * MS, name="cudaGraphLaunch_v10000", graphNodeId=5)
        copied = writer.call("cudaMemcpyAsync_v3020", at + 5 * MS, at + 6 * MS)
        writer.copy(copied, at + 5 * MS, at + 6 * MS, 1_000_000, (HOST_TO_DEVICE, PAGEABLE, DEVICE))
        writer.call("cudaStreamSynchronize_v3020", at + 6 * MS, at + 7 * MS)
    return writer.written()


@pytest.fixture
def steps(exported: Path) -> CapturedSteps:
    return read_export(exported)


def renamed(found: CapturedSteps, *names: str) -> CapturedSteps:
    """The steps with as many kernels as names, each alike."""
    kernels = [{**found.activity.kernels[0], "name": name} for name in names]
    return replace(found, activity=replace(found.activity, kernels=kernels))


def test_times_and_counts_are_of_one_step(steps: CapturedSteps) -> None:
    assert rows(steps, "kernels") == [("add", "3.00 ms", "100 %", "2", "1.50 ms")]
    assert rows(steps, "copies") == [("HtoD (Pageable -> Device)", "1", "1 MB", "1.00 ms", "1 GB/s")]
    span, active, counts = overview(steps)
    assert span == "2 steps of 4 items in 20.00 ms, NVIDIA H200; Nsight Systems 2026.1.1.204"
    assert counts.startswith("a step: kernel launches 1, graph launches 1, kernels 2, ")
    (copy, *_) = steps.activity.copies
    larger = {**copy, "dur": 0.0, "args": {**copy["args"], "bytes": 4_300_000_000}}
    assert rows(replace(steps, activity=replace(steps.activity, copies=[larger])), "copies") == [
        ("HtoD (Pageable -> Device)", "0.5", "2150 MB", "0.0000 ms", "-")
    ]
    where = "53 % of the time from its first to its last activity (kernels 40 %, copies 13 %, 0 % of copies"
    assert active.startswith(f"GPU active {where}")


def test_in_brief_a_summary_is_the_overview_and_the_longest_kernels(steps: CapturedSteps) -> None:
    assert brief(steps) == [*overview(steps), "most of its kernels' time: add 100 %"]
    assert brief(renamed(steps, *(f"kernel_{number}" for number in range(5))))[-1] == (
        "most of its kernels' time: kernel_0 20 %, kernel_1 20 %, kernel_2 20 %; 2 kernels more"
    )
    none = renamed(steps)
    assert brief(none) == overview(none)


def test_names_of_users_stay_text(steps: CapturedSteps) -> None:
    assert "forward | [red]<b>" in render_text(render(steps, 140), 140, colour=False)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("void at::native::add(float*, int)", "add"),
        ("void (anonymous namespace)::softmax<4>(float const*)", "softmax<4>"),
        ("void run<lambda(int)>(Params<void (*)(int)>)", "run<lambda(int)>"),
        ("void scal_kernel<float, (int)1, (bool)0>(T2 *)", "scal_kernel<float, 1, 0>"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("x" * 100, "x" * 57 + "..."),
    ],
)
def test_names_of_kernels_are_shown_short(steps: CapturedSteps, name: str, shown: str) -> None:
    assert rows(renamed(steps, name), "kernels")[0][:2] == (shown, "1.00 ms")


def test_the_command_prints_tables(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(exported)]) == 0
    assert capsys.readouterr().out.startswith("profile of case.sqlite\n")

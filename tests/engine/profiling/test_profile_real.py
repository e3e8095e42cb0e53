"""The summary of a real report of an H200, against figures taken from its tables by hand."""

import sqlite3
from contextlib import closing

import pytest

from gpugate.profiling import device_activity, host_calls, render
from gpugate.profiling.render import markdown
from gpugate.profiling.summary import ProfileSummary, summarize
from gpugate.report.terminal import render_text
from tests.support.profile_exports import REAL
from tests.support.scrub_profile import DROPPED, tables

WINDOW = "two-layer-net/all/cuda optimized"


@pytest.fixture(scope="module")
def found() -> ProfileSummary:
    return summarize(REAL, 5, WINDOW)


def of_real(sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"{REAL.as_uri()}?mode=ro", uri=True)) as real:
        return real.execute(sql).fetchall()


@pytest.mark.parametrize("width", [80, 100])
def test_in_a_narrow_terminal_a_name_gives_way_and_a_number_does_not(found: ProfileSummary, width: int) -> None:
    lines = render_text(render.tables(found, width), width, colour=False).splitlines()
    assert max(map(len, lines)) <= width
    (longest,) = (line for line in lines if line.startswith("cutlass::Kernel2"))
    assert longest.endswith(" 0.0101 ms  35 %     1 0.0101 ms  8x1x7 128x1x1")


def test_it_is_read_whole(found: ProfileSummary) -> None:
    assert (found.product, found.schema, found.gpu, found.notes) == ("2025.3.2.0", "3.20.3", "NVIDIA H200", ())
    assert (found.steps, found.items, found.report) == (5, 5 * 64, REAL.name)
    assert found.span_ms == (10_077_123 - 7_788_588) / 1e6  # of the range that was started around the steps


def test_its_counters_are_those_of_the_counting_pass_in_the_baseline(found: ProfileSummary) -> None:
    counted = {
        "kernel_launches": 0, "graph_launches": 1, "kernels": 6, "framework_kernels": 1, "tensor_core_kernels": 0,
        "memsets": 1, "synchronizing_calls": 0, "streams": 5, "pageable_copies": 0, "host_to_device_copies": 1,
        "device_to_host_copies": 1, "device_to_device_copies": 0, "host_to_device_bytes": 262_144,
        "device_to_host_bytes": 2560, "device_to_device_bytes": 0,
    }  # fmt: skip
    assert {name: found.counters[name] for name in counted} == counted


def test_its_times_are_those_of_its_tables(found: ProfileSummary) -> None:
    calls = {call.name: (call.count, round(call.ms * 1e6), round(call.longest_ms * 1e6)) for call in found.calls}
    assert calls == {  # and no cudaDeviceSynchronize, which ends the capture behind the steps
        "cudaGraphLaunch": (5, 997_881, 454_922),
        "cudaEventQuery": (5, 42_241, 19_779),
        "cudaEventRecordWithFlags": (5, 29_831, 7_851),
        "cudaStreamIsCapturing": (10, 22_938, 11_617),
    }
    assert round(sum(kernel.ms for kernel in found.kernels) * 1e6) == 144_639
    copies = [(copy.direction, copy.source, copy.target, copy.count, round(copy.ms * 1e6)) for copy in found.copies]
    assert copies == [
        ("host to device", "pinned", "device", 5, 83_456),
        ("device to host", "device", "pinned", 5, 11_648),
    ]
    assert round(found.active.window_ms * 1e6) == 9_978_345 - 8_325_329
    assert found.active.any_ms + found.active.idle_ms == found.active.window_ms
    assert sum(one.ms for one in found.idle_while) == pytest.approx(found.active.idle_ms)
    assert (found.graphs.ran, found.graphs.whole) == (5 * 9, 0)  # kernels, copies and memset of each replay
    (step,) = found.ranges
    assert (step.domain, step.name, step.count, step.activities) == ("gpugate", "step", 5, 5 * 9)


def test_it_is_told_without_noise(found: ProfileSummary) -> None:
    text = markdown(found)
    assert (
        "| `sgemm_largek_lds64<1, 0, 5, 5, 4, 4, 4, 34>` | 0.0128 ms | 44 % | 1 | 0.0128 ms | 1x2x5 | 16x16x1 |" in text
    )
    assert "copies 5.8 %, 0 % of copies under kernels" in text
    assert "| device to host, device to pinned | 1 | 2.56 kB | 0.0023 ms | 1.1 GB/s |" in text
    assert "in OS call" not in text  # there is none


def test_the_numbers_that_stand_for_words_are_those_of_nsys() -> None:
    memories = [label.lower() for (label,) in of_real("SELECT label FROM ENUM_CUDA_MEM_KIND ORDER BY id")]
    assert list(device_activity.MEMORIES) == memories
    directions = dict(of_real("SELECT id, label FROM ENUM_CUDA_MEMCPY_OPER"))
    for kind, words in device_activity.DIRECTIONS.items():
        assert str(directions[kind]).lower().replace("-to-", " to ") == words
    (allocates,) = of_real("SELECT id FROM ENUM_CUDA_DEV_MEM_EVENT_OPER WHERE label = 'Allocation'")
    assert allocates == (device_activity.ALLOCATES,)
    events = {label: event for event, label in of_real("SELECT id, label FROM ENUM_NSYS_EVENT_TYPE")}
    known = host_calls.PUSH_POP, host_calls.STARTED, host_calls.DOMAIN_NAMED
    assert tuple(events[name] for name in ("NvtxPushPopRange", "NvtxStartEndRange", "NvtxDomainCreate")) == known


def test_it_tells_nothing_of_the_machine_it_comes_from() -> None:
    content = REAL.read_bytes()
    assert len(content) < 300_000
    assert [
        word for word in (b"/tmp", b"/root", b"/opt", b"/usr", b"PATH", b"pytest", b"TOKEN") if word in content
    ] == []
    with closing(sqlite3.connect(f"{REAL.as_uri()}?mode=ro", uri=True)) as real:
        assert [table for table in tables(real) if table in DROPPED] == []
        assert real.execute("SELECT value FROM StringIds WHERE instr(CAST(value AS BLOB), x'00')").fetchall() == []

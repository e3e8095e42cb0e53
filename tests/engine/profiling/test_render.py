"""`gpugate profile`, and the words of a summary on the terminal and in Markdown."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.profiling.summary import (
    ProfileSummary,
    brief,
    markdown,
    overview,
    read_summary,
    summarize,
    tables,
)
from gpugate.report.terminal import render_text
from tests.support.profile_exports import DEVICE, HOST_TO_DEVICE, PAGEABLE, REAL, ExportWriter

MS = 1_000_000


@pytest.fixture
def export(tmp_path: Path) -> Path:
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
def summary(export: Path) -> ProfileSummary:
    return summarize(export)


def test_times_and_counts_are_of_one_step(summary: ProfileSummary) -> None:
    words = markdown(summary)
    assert "| add | 3.00 ms | 100 % | 2 | 1.50 ms |" in words
    assert "| HtoD (Pageable -> Device) | 1 | 1 MB | 1.00 ms | 1 GB/s |" in words
    assert "- 2 steps of 4 items in 20.00 ms, NVIDIA H200; Nsight Systems 2026.1.1.204" in words
    assert "- a step: kernel launches 1, graph launches 1, kernels 2, " in words
    larger = markdown(replace(summary, copies=(replace(summary.copies[0], bytes=4_300_000_000, ms=0.0),)))
    assert "| HtoD (Pageable -> Device) | 1 | 2.15 GB | 0.0000 ms | - |" in larger
    active = "- GPU active 53 % of the time from its first to its last activity (kernels 40 %, copies 13 %, 0 % of cop"
    assert active in words


def test_in_brief_a_summary_is_the_overview_and_the_longest_kernels(summary: ProfileSummary) -> None:
    assert brief(summary) == [*overview(summary), "most of its kernels' time: add 100 %"]
    named = [replace(summary.kernels[0], name=f"kernel_{number}") for number in range(5)]
    assert brief(replace(summary, kernels=tuple(named)))[-1] == (
        "most of its kernels' time: kernel_0 20 %, kernel_1 20 %, kernel_2 20 %; 2 kernels more"
    )
    assert brief(replace(summary, kernels=())) == overview(summary)


def test_names_of_users_stay_text(summary: ProfileSummary) -> None:
    assert "| `forward \\| [red]<b>` | 1 |" in markdown(summary)
    assert "forward | [red]<b>" in render_text(tables(summary, 140), 140, colour=False)


def test_in_a_narrow_terminal_a_name_gives_way_and_a_number_does_not() -> None:
    lines = render_text(tables(summarize(REAL), 70), 70, colour=False).splitlines()
    assert max(map(len, lines)) <= 70
    (longest,) = (line for line in lines if line.startswith("cutlass::Kernel2"))
    assert longest.endswith(" 0.0101 ms  35 %     1 0.0101 ms")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("void at::native::add(float*, int)", "add"),
        ("void (anonymous namespace)::softmax<4>(float const*)", "`softmax<4>`"),
        ("void run<lambda(int)>(Params<void (*)(int)>)", "`run<lambda(int)>`"),
        ("void scal_kernel<float, (int)1, (bool)0>(T2 *)", "`scal_kernel<float, 1, 0>`"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("x" * 100, "x" * 57 + "..."),
    ],
)
def test_names_of_kernels_are_shown_short(summary: ProfileSummary, name: str, shown: str) -> None:
    named = replace(summary, kernels=(replace(summary.kernels[0], name=name),))
    assert f"| {shown} | 3.00 ms |" in markdown(named)


def test_the_command_prints_tables_markdown_or_json(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(export)]) == 0
    assert capsys.readouterr().out.startswith("profile of case.sqlite\n")
    assert main(["profile", str(export), "--markdown"]) == 0
    assert capsys.readouterr().out == markdown(summarize(export))
    assert main(["profile", str(export), "--json"]) == 0
    path = export.with_name("profile.json")
    path.write_text(capsys.readouterr().out)
    assert read_summary(path) == summarize(export)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--steps", "0", "x.sqlite"], "--steps 0 is not a whole number from 1 on"),
        (["no.sqlite"], "cannot be read (No such file or directory): give a .nsys-rep or its SQLite export"),
        (["/"], "cannot be read (Is a directory): give a .nsys-rep or its SQLite export"),
        ([__file__], "cannot be read (file is not a database): give a .nsys-rep or its SQLite export"),
    ],
)
def test_what_cannot_be_profiled_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *words]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1

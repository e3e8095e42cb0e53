"""`gpugate profile`, and the words of a summary on the terminal and in Markdown."""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.commands import profile
from gpugate.errors import OptionError
from gpugate.profiling import nsight_tools
from gpugate.profiling.export_schema import ProfileError
from gpugate.profiling.render import brief, markdown, overview, tables, word_tables
from gpugate.profiling.summary import ProfileSummary, read_summary, summarize
from gpugate.report.terminal import render_text
from tests.engine.profiling.test_nsight_tools import SAID
from tests.support.fake_nsys import on_path
from tests.support.profile_exports import DEVICE, HOST_TO_DEVICE, PAGEABLE, ExportWriter

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
        writer.allocation(at, 1_000_000)
    return writer.written()


@pytest.fixture
def summary(export: Path) -> ProfileSummary:
    return summarize(export)


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    profile.add_arguments(parser)
    return profile.run(parser.parse_args(words))


@pytest.fixture(autouse=True)
def _no_nsys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setitem(nsight_tools.PLACES, "nsys", ())


def test_every_part_of_a_summary_has_its_table(summary: ProfileSummary) -> None:
    assert [table.title for table in word_tables(summary)] == [
        "kernels",
        "NVTX ranges on the GPU",
        "longest times without GPU work",
        "GPU idle while the host was in",
        "calls that wait for the device",
        "CUDA calls",
        "copies",
        "streams",
        "memory, of all steps",
    ]


def test_every_row_has_a_cell_for_each_column(summary: ProfileSummary) -> None:
    for table in word_tables(summary):
        assert {len(row) for row in table.rows} == {len(table.columns)}, table.title


def test_times_and_counts_are_of_one_step(summary: ProfileSummary) -> None:
    words = markdown(summary)
    assert "| add | 3.00 ms | 100 % | 2 | 1.50 ms | 8x1x1 | 128x1x1 |" in words
    assert "| host to device, pageable to device | 1 | 1 MB | 1.00 ms | 1 GB/s |" in words
    assert "- 2 steps of 4 items in 20.00 ms, NVIDIA H200; Nsight Systems 2026.1.1.204, schema 3.24.14" in words
    assert "- a step: kernel launches 1, graph launches 1, kernels 2, " in words
    assert "- graph nodes: 1 a step (1 different ones), 1.00 ms" in words
    larger = markdown(replace(summary, copies=(replace(summary.copies[0], bytes=4_300_000_000),)))
    assert "| host to device, pageable to device | 1 | 2.15 GB | 1.00 ms | 1 GB/s |" in larger
    assert "GPU active 53 % of the 15.00 ms from its first to its last activity (kernels 40 %, copies 13 %, " in words
    assert "0 % of copies under kernels), idle 3.50 ms a step" in words


def test_in_brief_a_summary_is_what_was_profiled_and_the_kernels_that_take_most(summary: ProfileSummary) -> None:
    assert brief(summary)[:-1] == overview(summary)
    assert brief(summary)[-1] == "most of its kernels' time: add 100 %"
    named = [replace(summary.kernels[0], name=f"kernel_{number}", share=0.2) for number in range(5)]
    assert brief(replace(summary, kernels=tuple(named)))[-1] == (
        "most of its kernels' time: kernel_0 20 %, kernel_1 20 %, kernel_2 20 %; 2 kernels more"
    )
    assert brief(replace(summary, kernels=())) == overview(summary)


def test_names_of_users_stay_text(summary: ProfileSummary) -> None:
    assert "| `forward \\| [red]<b>` | 1 |" in markdown(summary)
    assert "forward | [red]<b>" in render_text(tables(summary, 140), 140, colour=False)


def test_a_narrow_terminal_folds_names_and_no_figures(summary: ProfileSummary) -> None:
    lines = render_text(tables(summary, 72), 72, colour=False).splitlines()
    assert max(map(len, lines)) <= 72
    assert any("3.00 ms" in line and "128x1x1" in line for line in lines)


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
    assert run(str(export)) == 0
    assert capsys.readouterr().out.startswith("profile of case.sqlite\n")
    assert run(str(export), "--markdown", "--no-rules") == 0
    assert capsys.readouterr().out == markdown(summarize(export))
    assert run(str(export), "--json", "--no-rules") == 0
    path = export.with_name("profile.json")
    path.write_text(capsys.readouterr().out)
    assert read_summary(path) == summarize(export)


def test_without_nsys_the_rules_are_missed_and_nothing_else(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(str(export), "--json")
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes == [
        "nsys's expert rules were not run: nsys was not found: install Nsight Systems, or put its nsys on PATH"
    ]


def test_a_report_is_exported_first_and_its_findings_attached(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export.rename(tmp_path / "made")
    (tmp_path / "said").write_text(SAID)
    copies = f'for word; do case "$word" in --output=*) cp {tmp_path}/made "${{word#--output=}}";; esac; done'
    on_path(tmp_path, monkeypatch, f'[ "$1" = analyze ] && cat {tmp_path}/said && exit\n{copies}')
    report = tmp_path / "case.nsys-rep"
    report.touch()
    assert run(str(report), "--markdown") == 0
    words = capsys.readouterr().out
    assert words.startswith("## Profile of case.sqlite\n")
    assert "### nsys rule: CUDA Synchronous Memcpy\n" in words
    assert "\n- The following are ranges where a GPU is idle for more than 500ms.\n- 3 more" in words
    assert "Row#" not in words


def test_steps_must_be_one_or_more(export: Path) -> None:
    with pytest.raises(OptionError, match="--steps 0 is not a whole number from 1 on"):
        run(str(export), "--steps", "0")


def test_a_wrong_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        run(str(tmp_path / "no.sqlite"))


@pytest.mark.parametrize("folder", [".", "..", "/"])
def test_a_folder_is_one_sentence(folder: str) -> None:
    with pytest.raises(ProfileError, match=r"cannot be read \(Is a directory\): give a .nsys-rep or its SQLite export"):
        run(folder)


def test_asking_for_help_loads_nothing_heavy() -> None:
    script = (
        "import argparse, sys; from gpugate.commands import profile; "
        "profile.add_arguments(argparse.ArgumentParser()); "
        "sys.exit(bool({'sqlite3', 'torch', 'rich'} & set(sys.modules)))"
    )
    # Of this environment nothing: where coverage is measured, coverage itself loads sqlite3.
    environment = {"PYTHONPATH": str(Path(__file__).parents[3])}
    assert subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == 0

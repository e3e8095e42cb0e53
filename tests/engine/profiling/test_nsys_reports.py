"""The files that are kept of an nsys run: good reports, none, or a file that its importer could not read."""

import os
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.errors import EnvironmentUnfitError
from gpugate.profiling import nsight_tools, nsys_reports
from gpugate.profiling.capture_index import Capture, CaptureIndex, SideLabel
from gpugate.profiling.export_schema import ProfileError
from gpugate.profiling.nsys_reports import keep_reports
from gpugate.profiling.profiled_run import ProfiledRun
from gpugate.session.options import Profiling
from tests.support.fake_nsys import FakeNsys
from tests.support.profile_exports import ExportWriter

summarize_report = nsys_reports._summarize


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNsys:
    made = FakeNsys(tmp_path / "nsys")
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.setattr(nsys_reports, "_summarize", write_said)
    monkeypatch.setattr(nsys_reports, "export_report", lambda report, nsys: exported_from(report))
    return made


def write_said(export: Path, nsys: object, target: Path, capture: Capture) -> list[str]:
    target.with_name(f"{target.name}.summary.md").write_text("said")
    return [f"what {capture.window} did"]


def exported_from(report: Path) -> Path:
    path = report.with_suffix(".sqlite")
    sqlite3.connect(path).close()
    return path


def captured(number: int, complete: bool = True, label: SideLabel = "optimized", case: str = "a/b/cuda") -> Capture:
    return Capture(number, case, label, "b", 5, 64, complete)


def kept(tmp_path: Path, captures: list[Capture], left: Sequence[str] = ()) -> tuple[list[str], list[str], Path]:
    """The problems, the printed words and the folder, where nsys left the files `left`."""
    shared, folder = tmp_path / "shared", tmp_path / "found"
    shared.mkdir()
    folder.mkdir(exist_ok=True)
    for name in left:
        (shared / name).write_text(name)
    run = ProfiledRun(Profiling("nsys", folder), shared, dict(os.environ), CaptureIndex(captures, 0))
    said: list[str] = []
    return keep_reports(run, nsight_tools.nsys(os.environ), said.append), said, folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_report_goes_to_its_own_test_by_its_number(tmp_path: Path, nsys: FakeNsys) -> None:
    captures = [captured(1, label="reference"), captured(2), captured(10, case="c/d/cuda")]
    problems, said, folder = kept(tmp_path, captures, [f"capture.{number}.nsys-rep" for number in (10, 2, 1)])
    assert problems == []
    assert (folder / "a+b+cuda.reference.nsys-rep").read_text() == "capture.1.nsys-rep"
    assert (folder / "a+b+cuda.optimized.nsys-rep").read_text() == "capture.2.nsys-rep"
    assert (folder / "c+d+cuda.optimized.nsys-rep").read_text() == "capture.10.nsys-rep"
    assert said[1:] == [
        "  a/b/cuda reference (b), 5 steps: a+b+cuda.reference.nsys-rep",
        "    what a/b/cuda reference did",
        "  a/b/cuda optimized (b), 5 steps: a+b+cuda.optimized.nsys-rep",
        "    what a/b/cuda optimized did",
        "  c/d/cuda optimized (b), 5 steps: c+d+cuda.optimized.nsys-rep",
        "    what c/d/cuda optimized did",
        f"all of it: the .summary.md beside each, or `gpugate profile {folder}/a+b+cuda.reference.nsys-rep`",
    ]
    listed = (folder / "summary.md").read_text()
    assert (
        "| a/b/cuda | reference (b) | 5 | 64 | a+b+cuda.reference.nsys-rep | 0.0 | a+b+cuda.reference.summary.md |"
        in listed
    )


def test_of_many_reports_the_list_says_what_is_in_them(tmp_path: Path, nsys: FakeNsys) -> None:
    captures = [captured(number, case=f"a/{number}/cuda") for number in range(1, nsys_reports.MOST_TOLD + 2)]
    _, said, _ = kept(tmp_path, captures, [f"capture.{capture.number}.nsys-rep" for capture in captures])
    assert not [line for line in said if line.startswith("    ")]
    assert len(said) == len(captures) + 2


def test_of_a_report_that_was_not_kept_nothing_is_told(
    tmp_path: Path, nsys: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_reports, "isolating_words", lambda: None)
    problems, said, _ = kept(tmp_path, [captured(1)], ["capture.1.nsys-rep"])
    assert len(problems) == len(said) == 1, said


@pytest.mark.parametrize("ending", ["nsys-rep", "qdstrm"])
def test_a_single_report_may_have_no_number(tmp_path: Path, nsys: FakeNsys, ending: str) -> None:
    _, _, folder = kept(tmp_path, [captured(1)], [f"capture.{ending}"])
    assert (folder / f"a+b+cuda.optimized.{ending}").read_text() == f"capture.{ending}"


def test_a_report_of_other_steps_is_not_summarized(
    tmp_path: Path, nsys: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_reports, "_summarize", summarize_report)
    monkeypatch.setattr(
        nsys_reports,
        "export_report",
        lambda report, nsys: Path(shutil.copy(export.path, report.with_suffix(".sqlite"))),
    )
    export = ExportWriter(tmp_path / "export.sqlite")
    export.range("a/b/cuda reference", 0, 20_000, eventType=60)
    export.step(0, 10_000)
    export.launch(3_000, 5_000)
    export.written()
    captures = [replace(captured(1), steps=1), replace(captured(2, label="reference"), steps=1)]
    problems, _, _ = kept(tmp_path, captures, ["capture.1.nsys-rep", "capture.2.nsys-rep"])
    (problem,) = problems
    assert problem.startswith("a+b+cuda.optimized.nsys-rep was not summarized: ")
    assert problem.endswith("it contains the steps of a/b/cuda reference and not of a/b/cuda optimized: profile again")


def test_a_report_that_could_not_be_imported_is_kept(tmp_path: Path, nsys: FakeNsys) -> None:
    (problem,), _, folder = kept(tmp_path, [captured(1)], ["capture.1.qdstrm"])
    assert problem.endswith("nsys could not import it: its importer may need libdw.so.1, apt install libdw1")
    assert names(folder) == ["a+b+cuda.optimized.qdstrm", "summary.md"]


def test_a_capture_that_is_not_whole_leaves_nothing_of_an_earlier_run(tmp_path: Path, nsys: FakeNsys) -> None:
    (tmp_path / "found").mkdir()
    for ending in ("nsys-rep", "sqlite", "summary.md", "summary.json", "qdstrm"):
        (tmp_path / f"found/a+b+cuda.optimized.{ending}").touch()
    problems, _, folder = kept(tmp_path, [captured(1, complete=False)], ["capture.1.nsys-rep"])
    assert problems == []
    assert names(folder) == ["summary.md"]
    assert "its steps failed or were cut off" in (folder / "summary.md").read_text()


def test_without_a_report_the_capture_is_a_problem(tmp_path: Path, nsys: FakeNsys) -> None:
    problems, said, _ = kept(tmp_path, [captured(1)])
    assert problems == ["nsys wrote no report of a/b/cuda optimized: look at what it said"]
    assert said[0].startswith("nsys: 0 reports in ")


def test_a_report_that_says_nothing_is_kept(tmp_path: Path, nsys: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise ProfileError("the report contains no kernel")

    monkeypatch.setattr(nsys_reports, "_summarize", refuse)
    problems, _, folder = kept(tmp_path, [captured(1)], ["capture.1.nsys-rep"])
    assert problems == ["a+b+cuda.optimized.nsys-rep was not summarized: the report contains no kernel"]
    assert names(folder) == ["a+b+cuda.optimized.nsys-rep", "a+b+cuda.optimized.sqlite", "summary.md"]


def test_an_export_that_breaks_a_query_loses_no_other_report(
    tmp_path: Path, nsys: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_reports, "_summarize", summarize_report)
    exports = iter(["damaged", "good"])
    monkeypatch.setattr(
        nsys_reports,
        "export_report",
        lambda report, nsys: Path(shutil.copy(tmp_path / f"{next(exports)}.sqlite", report.with_suffix(".sqlite"))),
    )
    for name, end in (("damaged", 2**63 - 1), ("good", 5_000)):
        export = ExportWriter(tmp_path / f"{name}.sqlite")
        export.step(0, 10_000)
        for _ in range(2):
            export.launch(3_000, end)  # the sum of both is no number of SQLite's
        export.written()
    captures = [replace(captured(1, label="reference"), steps=1), replace(captured(2), steps=1)]
    problems, _, folder = kept(tmp_path, captures, ["capture.1.nsys-rep", "capture.2.nsys-rep"])
    assert problems == ["a+b+cuda.reference.nsys-rep was not summarized: integer overflow"]
    kept_of = {name.split(".", 1)[1] for name in names(folder) if name.startswith("a+b")}
    assert kept_of == {
        *("reference.nsys-rep", "reference.sqlite", "optimized.nsys-rep", "optimized.sqlite"),
        *("optimized.summary.md", "optimized.summary.json"),
    }


def test_a_report_that_cannot_be_exported_is_kept(
    tmp_path: Path, nsys: FakeNsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise ProfileError("`nsys export` ended with status 1")

    monkeypatch.setattr(nsys_reports, "export_report", refuse)
    problems, _, folder = kept(tmp_path, [captured(1)], ["capture.1.nsys-rep"])
    assert problems == ["a+b+cuda.optimized.nsys-rep was not summarized: `nsys export` ended with status 1"]
    assert names(folder) == ["a+b+cuda.optimized.nsys-rep", "summary.md"]


def test_an_nsys_without_a_version_is_refused(nsys: FakeNsys) -> None:
    (nsys.folder / "nsys").write_text("#!/bin/sh\necho what\n")
    with pytest.raises(EnvironmentUnfitError, match=r"is of an unknown version .what.: install Nsight Systems"):
        nsight_tools.nsys(os.environ)

"""What becomes of the files that nsys leaves: good reports, none, or what its importer could not read."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpugate.errors import EnvironmentUnfitError
from gpugate.options import Profiling
from gpugate.profiling import nsight_tools, nsys_reports
from gpugate.profiling.capture_index import Capture, CaptureIndex, SideLabel
from gpugate.profiling.export_schema import ProfileError
from gpugate.profiling.nsys_reports import keep_reports
from gpugate.profiling.self_start import ProfiledRun
from tests.fake_nsys import FakeNsys

LIBDW = "QdstrmImporter: error while loading shared libraries: libdw.so.1: cannot open shared object file: No such file"


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNsys:
    made = FakeNsys(tmp_path / "nsys")
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.setattr(nsys_reports, "_summarize", lambda *given: given[2][".summary.md"].write_text("said"))
    return made


def captured(
    number: int, report: str | None, complete: bool = True, label: SideLabel = "optimized", case: str = "a/b/cuda"
) -> Capture:
    return Capture(number, case, label, "b", 5, 64, complete, report)


def kept(tmp_path: Path, captures: list[Capture], late: Sequence[str] = ()) -> tuple[list[str], list[str], Path]:
    """What is wrong and what was said, and the folder. `late`: reports of which the index does not know."""
    shared, folder = tmp_path / "shared", tmp_path / "found"
    shared.mkdir()
    folder.mkdir(exist_ok=True)
    for name in (*late, *(capture.report for capture in captures if capture.report is not None)):
        (shared / name).write_text(name)
    run = ProfiledRun(Profiling("nsys", folder), shared, dict(os.environ), CaptureIndex(captures, 0))
    said: list[str] = []
    return keep_reports(run, nsight_tools.nsys(os.environ), said.append), said, folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_report_goes_to_its_own_test_whatever_nsys_called_it(tmp_path: Path, nsys: FakeNsys) -> None:
    captures = [captured(1, "capture.nsys-rep", label="reference"), captured(2, "capture.7.nsys-rep")]
    problems, said, folder = kept(tmp_path, captures)
    assert problems == []
    assert (folder / "a+b+cuda.reference.nsys-rep").read_text() == "capture.nsys-rep"
    assert (folder / "a+b+cuda.optimized.nsys-rep").read_text() == "capture.7.nsys-rep"
    assert "  a/b/cuda optimized (b), 5 steps: a+b+cuda.optimized.nsys-rep" in said
    listed = (folder / "summary.md").read_text()
    assert "| a/b/cuda | reference (b) | 5 | 64 | `a+b+cuda.reference.nsys-rep` | 0.0 | [summary](" in listed


@pytest.mark.parametrize("ending", ["nsys-rep", "qdstrm"])
def test_a_report_that_came_late_is_found_by_its_number(tmp_path: Path, nsys: FakeNsys, ending: str) -> None:
    _, _, folder = kept(tmp_path, [captured(2, None)], late=[f"capture.{number}.{ending}" for number in (1, 2)])
    assert (folder / f"a+b+cuda.optimized.{ending}").read_text() == f"capture.2.{ending}"


@pytest.mark.parametrize(
    ("importer", "problem"),
    [
        (LIBDW, "its importer needs libdw.so.1, so install it (apt install libdw1)"),
        ("libfoo.so.2 => not found", "its importer needs libfoo.so.2, so install it"),
        ("what is this", "its importer failed (what is this), so install Nsight Systems whole"),
        (None, "its importer failed (no QdstrmImporter beside it), so install Nsight Systems whole"),
    ],
)
def test_what_could_not_be_imported_is_kept_and_says_why(
    tmp_path: Path, nsys: FakeNsys, importer: str | None, problem: str
) -> None:
    if importer is not None:
        nsys.importer(importer)
    problems, _, folder = kept(tmp_path, [captured(1, "capture.1.qdstrm")])
    assert problems == [f"nsys made no report of a+b+cuda.optimized.qdstrm, which is kept: {problem}"]
    assert names(folder) == ["a+b+cuda.optimized.qdstrm", "summary.md"]


def test_a_capture_that_is_not_whole_leaves_nothing_of_an_earlier_run(tmp_path: Path, nsys: FakeNsys) -> None:
    (tmp_path / "found").mkdir()
    for ending in ("nsys-rep", "sqlite", "summary.md", "summary.json", "qdstrm"):
        (tmp_path / f"found/a+b+cuda.optimized.{ending}").touch()
    problems, _, folder = kept(tmp_path, [captured(1, "capture.1.nsys-rep", complete=False)])
    assert problems == []
    assert names(folder) == ["summary.md"]
    assert "its steps failed or were cut off" in (folder / "summary.md").read_text()


def test_without_a_report_the_capture_is_a_problem(tmp_path: Path, nsys: FakeNsys) -> None:
    problems, said, _ = kept(tmp_path, [captured(1, None)])
    assert problems == ["nsys wrote no report of a/b/cuda optimized: look at what it said"]
    assert said[0].startswith("nsys: 0 reports in ")


def test_a_report_that_says_nothing_is_kept(tmp_path: Path, nsys: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise ProfileError("the report holds no kernel")

    monkeypatch.setattr(nsys_reports, "_summarize", refuse)
    problems, _, folder = kept(tmp_path, [captured(1, "capture.1.nsys-rep")])
    assert problems == ["a+b+cuda.optimized.nsys-rep was not summarized: the report holds no kernel"]
    assert names(folder) == ["a+b+cuda.optimized.nsys-rep", "summary.md"]


def test_an_nsys_without_a_version_is_refused(nsys: FakeNsys) -> None:
    (nsys.folder / "nsys").write_text("#!/bin/sh\necho what\n")
    with pytest.raises(EnvironmentUnfitError, match=r"does not tell its version .what.: install it anew"):
        nsight_tools.nsys(os.environ)

"""The files that are kept of a run under nsys or ncu: good reports, none, or a file that was not imported."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpugate.profiling import export, nsight_reports
from gpugate.profiling.capture_index import Capture, CaptureIndex, SideLabel
from gpugate.profiling.nsight_reports import ProfiledRun, keep_reports, run_under_ncu
from gpugate.session.options import Profiling
from tests.support.fake_ncu import install
from tests.support.fake_nsys import NVTX, on_path
from tests.support.profile_exports import ExportWriter

SECRET = "hunter2-of-a-ci-job"
STEM = "a+b+cuda.optimized"
# An nsys whose exports are the file `made`.
EXPORTS = 'for word; do case "$word" in --output=*) cp {made} "${{word#--output=}}";; esac; done'


def captured(number: int, complete: bool = True, label: SideLabel = "optimized", case: str = "a/b/cuda") -> Capture:
    return Capture(number, case, label, "b", 1, 64, complete)


class Kept:
    """What is kept of a run: its problems, the printed lines, and the files by their names."""

    def __init__(self, run: ProfiledRun, isolated: bool) -> None:
        self.lines: list[str] = []
        self.problems = keep_reports(run, isolated, self.lines.append)
        self.folder = run.profiling.folder
        self.names = sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kept]:
    """Keeps reports of `captures`, of which nsys left the files of these endings behind their stem `capture`."""
    writer = ExportWriter(tmp_path / "made")
    writer.step(0, 10_000)
    writer.launch(3_000, 5_000)
    on_path(tmp_path, monkeypatch, EXPORTS.format(made=writer.written()))
    (tmp_path / "found").mkdir()

    def keep_left(captures: list[Capture], *left: str, isolated: bool = True) -> Kept:
        shared = tmp_path / "shared"
        shared.mkdir()
        for ending in left:
            (shared / f"capture.{ending}").write_text(ending)
        run = ProfiledRun(Profiling("nsys", tmp_path / "found"), shared, dict(os.environ), CaptureIndex(captures, 0))
        return Kept(run, isolated)

    return keep_left


def test_each_report_goes_to_its_own_test_by_its_number(keep: Callable[..., Kept]) -> None:
    captures = [captured(1, label="reference"), captured(2), captured(10, case="c/d/cuda")]
    kept = keep(captures, *(f"{number}.nsys-rep" for number in (10, 2, 1)))
    assert kept.problems == []
    stems = {"a+b+cuda.reference": "1", "a+b+cuda.optimized": "2", "c+d+cuda.optimized": "10"}
    for stem, number in stems.items():
        assert (kept.folder / f"{stem}.nsys-rep").read_text() == f"{number}.nsys-rep"
    endings = ("nsys-rep", "sqlite", "summary.json", "summary.md")
    assert kept.names == sorted(f"{stem}.{ending}" for stem in stems for ending in endings)
    told = [line for line in kept.lines[1:] if not line.startswith("    ")]
    assert told == [
        "  a/b/cuda reference (b), 1 steps: a+b+cuda.reference.nsys-rep",
        "  a/b/cuda optimized (b), 1 steps: a+b+cuda.optimized.nsys-rep",
        "  c/d/cuda optimized (b), 1 steps: c+d+cuda.optimized.nsys-rep",
        f"all of it: the .summary.md beside each, or `gpugate profile {kept.folder}/a+b+cuda.reference.nsys-rep`",
    ]
    assert "    most of its kernels' time: add 100 %" in kept.lines


def test_of_many_reports_the_terminal_shows_no_summary(keep: Callable[..., Kept]) -> None:
    captures = [captured(number, case=f"a/{number}/cuda") for number in range(1, nsight_reports.MOST_SHOWN + 2)]
    kept = keep(captures, *(f"{capture.number}.nsys-rep" for capture in captures))
    assert not [line for line in kept.lines if line.startswith("    ")]
    assert len(kept.lines) == len(captures) + 2


@pytest.mark.parametrize("ending", ["nsys-rep", "qdstrm"])
def test_a_single_report_may_have_no_number(keep: Callable[..., Kept], ending: str) -> None:
    assert (keep([captured(1)], ending).folder / f"{STEM}.{ending}").read_text() == ending


def test_a_report_that_could_not_be_imported_is_kept(keep: Callable[..., Kept]) -> None:
    kept = keep([captured(1)], "1.qdstrm")
    assert kept.names == [f"{STEM}.qdstrm"]
    (problem,) = kept.problems
    assert problem.endswith("nsys could not import it: its importer may need libdw.so.1, apt install libdw1")


def test_a_capture_that_is_not_whole_leaves_nothing_of_an_earlier_run(
    keep: Callable[..., Kept], tmp_path: Path
) -> None:
    for ending in ("nsys-rep", "sqlite", "summary.md", "summary.json", "qdstrm"):
        (tmp_path / f"found/{STEM}.{ending}").touch()
    kept = keep([captured(1, complete=False)], "1.nsys-rep")
    assert (kept.problems, kept.names) == ([], [])


def test_without_a_report_the_capture_is_a_problem(keep: Callable[..., Kept]) -> None:
    kept = keep([captured(1)])
    assert kept.problems == ["nsys wrote no report of a/b/cuda optimized: look at its output"]
    assert kept.lines[0].startswith("nsys: 0 reports in ")


def test_a_file_in_the_way_costs_no_other_report(keep: Callable[..., Kept], tmp_path: Path) -> None:
    (tmp_path / f"found/{STEM}.nsys-rep").mkdir()
    kept = keep([captured(1), captured(2, label="reference")], "1.nsys-rep", "2.nsys-rep")
    (problem,) = kept.problems
    assert problem.startswith(f"{STEM} was not kept (IsADirectoryError: ")
    assert problem.endswith("move what is in its way, or report this")
    assert "a+b+cuda.reference.nsys-rep" in kept.names


@pytest.mark.parametrize("ending", ["nsys-rep", "qdstrm"])
def test_where_nsys_may_see_other_processes_no_report_is_kept(keep: Callable[..., Kept], ending: str) -> None:
    kept = keep([captured(1)], f"1.{ending}", isolated=False)
    (problem,) = kept.problems
    assert problem.startswith(f"{STEM}.{ending} was not kept, as nsys may read the variables of other processes here")
    summaries = [f"{STEM}.summary.json", f"{STEM}.summary.md"] if ending == "nsys-rep" else []
    assert kept.names == [*summaries]
    assert len(kept.lines) == 1


# --- ncu --------------------------------------------------------------------------------------------------------------

LEFT = [".gitignore", ".lock"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nvtx.py").write_text(NVTX, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def under_ncu(project: Path, log: str = "", reports: bool = True, captured: bool = True) -> tuple[int, str, list[str]]:
    """Runs a stand-in; returns the exit status, the printed lines, and the files that are kept."""
    capture = {"number": 1, "case_id": "a/fused/cuda", "label": "reference", "side": "baseline", "steps": 1}
    whole = {**capture, "items": 64, "complete": True}
    install(project, log, reports, {"captures": [whole] if captured else [], "status": 0 if captured else 5})
    lines: list[str] = []
    status = run_under_ncu(Profiling("ncu", project / "found", kernels=30), ["-k", "x"], lines.append)
    return status, "\n".join(lines), sorted(path.name for path in (project / "found").iterdir())


def test_a_run_under_ncu_keeps_its_report_without_a_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_JOB_TOKEN", SECRET)
    status, printed, kept = under_ncu(project)
    assert (status, kept) == (0, [*LEFT, "kernels.ncu-rep"]), printed
    assert printed == f"ncu: open {project / 'found/kernels.ncu-rep'} in Nsight Compute; under a profiler: not judged"
    report = (project / "found/kernels.ncu-rep").read_text(encoding="utf-8")
    assert f'"PATH": "{project}:' in report  # so that a secret in it would be seen
    assert SECRET not in report
    words = json.loads((project / "words").read_text(encoding="utf-8"))
    assert {"--nvtx", "--import-sass=no", "--profile-from-start=off", "--launch-count=30"} <= set(words)
    assert words[-4:] == ["-m", "pytest", "-k", "x"]


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM: no permission", f"(ERR_NVGPUCTRPERM): {export.PERMISSION}"),
        ("==PROF== a\n==WARNING== No kernels were profiled.", "no report (No kernels were profiled.): run it by hand"),
        ("", "ncu made no report (it said no error): run it by hand to see more"),
    ],
)
def test_without_a_report_of_ncu_its_problem_is_named(project: Path, log: str, sentence: str) -> None:
    status, printed, kept = under_ncu(project, log, reports=False)
    assert (status, kept) == (1, LEFT)
    assert sentence in printed


def test_where_no_side_was_captured_no_report_of_ncu_is_expected(project: Path) -> None:
    assert under_ncu(project, reports=False, captured=False) == (5, "", LEFT)

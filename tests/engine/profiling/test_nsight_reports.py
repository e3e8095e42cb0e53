"""Runs under nsys or ncu: what is kept of them, what they may show, and that a profiler ends with what it started."""

import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gpugate.machine.processes import treat_termination_as_ctrl_c
from gpugate.profiling import export, nsight_reports
from gpugate.profiling.export import Capture, CaptureIndex, SideLabel
from gpugate.profiling.nsight_reports import (
    ProfiledRun,
    allowed_variables,
    keep_reports,
    run_profiled,
    run_under_profiler,
)
from gpugate.session.options import Profiling, read_options
from gpugate.store.codec import to_json
from gpugate.store.json_file import pretty
from tests.support.fake_nsys import on_path
from tests.support.patience import wait_until
from tests.support.profile_exports import ExportWriter
from tests.support.tiny_project import running

SECRET = "hunter2-of-a-ci-job"
STEM = "a+b+cuda.optimized"
# An nsys whose exports are the file `made`.
EXPORTS = 'for word; do case "$word" in --output=*) cp {made} "${{word#--output=}}";; esac; done'


def captured(number: int, complete: bool = True, label: SideLabel = "optimized", case: str = "a/b/cuda") -> Capture:
    return Capture(number, case, label, "b", 1, 64, complete)


class Kept:
    """What is kept of `captures`, of which nsys left the files of these endings behind their stem `capture`: the
    problems, the printed lines, and the files by their names."""

    def __init__(self, root: Path, captures: list[Capture], *left: str, isolated: bool = True) -> None:
        self.folder, shared = root / "found", root / "shared"
        shared.mkdir()
        for ending in left:
            (shared / f"capture.{ending}").write_text(ending)
        index = CaptureIndex(captures, 0)
        run = ProfiledRun(Profiling("nsys", self.folder), shared, dict(os.environ), index, isolated)
        said = io.StringIO()
        with redirect_stdout(said):
            self.problems = list(keep_reports(run))
        self.lines = said.getvalue().splitlines()
        self.names = sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kept]:
    writer = ExportWriter(tmp_path / "made")
    writer.step(0, 10_000)
    writer.launch(3_000, 5_000)
    on_path(tmp_path, monkeypatch, EXPORTS.format(made=writer.written()))
    (tmp_path / "found").mkdir()
    return partial(Kept, tmp_path)


@pytest.mark.parametrize("most_shown", [2, 3])
def test_each_report_goes_to_its_own_test_by_its_number(
    keep: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch, most_shown: int
) -> None:
    monkeypatch.setattr(nsight_reports, "MOST_SHOWN", most_shown)
    captures = [captured(1, label="reference"), captured(2), captured(10, case="c/d/cuda")]
    kept = keep(captures, *(f"{number}.nsys-rep" for number in (10, 2, 1)))
    assert kept.problems == []
    stems = {"a+b+cuda.reference": "1", "a+b+cuda.optimized": "2", "c+d+cuda.optimized": "10"}
    for stem, number in stems.items():
        assert (kept.folder / f"{stem}.nsys-rep").read_text() == f"{number}.nsys-rep"
    endings = ("nsys-rep", "sqlite", "summary.md")
    assert kept.names == sorted(f"{stem}.{ending}" for stem in stems for ending in endings)
    told = [line for line in kept.lines[1:] if not line.startswith("    ")]
    assert told == [
        "  a/b/cuda reference (b), 1 steps: a+b+cuda.reference.nsys-rep",
        "  a/b/cuda optimized (b), 1 steps: a+b+cuda.optimized.nsys-rep",
        "  c/d/cuda optimized (b), 1 steps: c+d+cuda.optimized.nsys-rep",
        f"all of it: the .summary.md beside each, or `gpugate profile {kept.folder}/a+b+cuda.reference.nsys-rep`",
    ]
    assert ("    most of its kernels' time: add 100 %" in kept.lines) is (most_shown == 3), (
        "of many reports none is shown"
    )


MISSING = "nsys wrote no report of a/b/cuda optimized: look at its output, its importer may need libdw1"
REFUSED = f"{STEM}.nsys-rep was not kept, as nsys may read the variables of other processes here"


@pytest.mark.parametrize(
    ("complete", "left", "isolated", "problem", "endings"),
    [
        (True, "nsys-rep", True, None, ["nsys-rep", "sqlite", "summary.md"]),  # a single report may have no number
        (False, "1.nsys-rep", True, None, []),
        (True, "log", True, MISSING, []),
        (True, "1.nsys-rep", False, REFUSED, ["summary.md"]),
    ],
    ids=["without a number", "a capture that is not whole", "no report", "nsys may see other processes"],
)
def test_what_is_kept_of_a_capture_replaces_that_of_an_earlier_run(
    keep: Callable[..., Kept], tmp_path: Path, complete: bool, left: str, isolated: bool, problem: str | None,
    endings: list[str],
) -> None:  # fmt: skip
    for ending in ("nsys-rep", "sqlite", "summary.md"):
        (tmp_path / f"found/{STEM}.{ending}").touch()
    kept = keep([captured(1, complete)], left, isolated=isolated)
    assert [one.startswith(problem or "?") for one in kept.problems] == [True] * (problem is not None)
    assert kept.names == [f"{STEM}.{ending}" for ending in endings]


def test_a_report_that_cannot_be_summarized_is_kept_and_listed(keep: Callable[..., Kept]) -> None:
    kept = keep([replace(captured(1), steps=3)], "1.nsys-rep")
    (problem,) = kept.problems
    assert problem.startswith(f"{STEM}.nsys-rep was not summarized: ")
    assert problem.endswith("contains 1 steps and not 3: profile again, its capture was cut off")
    assert kept.lines[0].startswith("nsys: 1 reports in")
    assert kept.names == [f"{STEM}.nsys-rep", f"{STEM}.sqlite"]


def test_a_file_in_the_way_costs_no_other_report(keep: Callable[..., Kept], tmp_path: Path) -> None:
    (tmp_path / f"found/{STEM}.nsys-rep").mkdir()
    kept = keep([captured(1), captured(2, label="reference")], "1.nsys-rep", "2.nsys-rep")
    (problem,) = kept.problems
    assert problem.startswith(f"{STEM} was not kept (IsADirectoryError: ")
    assert problem.endswith("move what is in its way, or report this")
    assert "a+b+cuda.reference.nsys-rep" in kept.names


# --- ncu --------------------------------------------------------------------------------------------------------------

LEFT = [".gitignore"]


# An ncu whose report is the environment that it has seen, which a real report contains too.
NCU = """#!/bin/sh
printf '%s\\n' "$@" > {folder}/words
cp {folder}/index.json "$GPUGATE_PROFILED_IN"
for word; do case "$word" in
    --log-file=*) cp {folder}/log "${{word#*=}}";;
    --export=*) {write} > "${{word#*=}}{ending}";;
esac; done
"""


def under_ncu(project: Path, log: str = "", reports: bool = True, captured: bool = True) -> tuple[int, str, list[str]]:
    """Runs a stand-in; returns the exit status, the printed lines, and the files that are kept."""
    captures = [Capture(1, "a/fused/cuda", "reference", "baseline", 1, 64, captured)]
    (project / "index.json").write_text(pretty(to_json(CaptureIndex(captures, 0 if captured else 5))))
    (project / "log").write_text(log)
    made = NCU.format(folder=project, write="env" if reports else "true", ending=".ncu-rep" if reports else "")
    (project / "ncu").write_text(made)
    (project / "ncu").chmod(0o755)
    with redirect_stdout(io.StringIO()) as said:
        status = run_under_profiler(Profiling("ncu", project / "found", kernels=30), ["-k", "x"])
    return status, said.getvalue().removesuffix("\n"), sorted(path.name for path in (project / "found").iterdir())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_a_run_under_profiler_keeps_its_report_without_a_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_JOB_TOKEN", SECRET)
    status, printed, kept = under_ncu(project)
    assert (status, kept) == (0, [*LEFT, "kernels.ncu-rep"]), printed
    assert printed == f"ncu: open {project / 'found/kernels.ncu-rep'} in Nsight Compute; under a profiler: not judged"
    report = (project / "found/kernels.ncu-rep").read_text(encoding="utf-8")
    assert f"PATH={project}:" in report  # so that a secret in it would be seen
    assert SECRET not in report
    words = (project / "words").read_text(encoding="utf-8").splitlines()
    assert {"--set=basic", "--nvtx", "--import-sass=no", "--profile-from-start=off", "--launch-count=30"} <= set(words)
    assert words[-4:] == ["-m", "pytest", "-k", "x"]


def test_an_interrupted_run_says_so_and_leaves_nothing_unfinished(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsight_reports, "keep_kernels", lambda run: os.kill(os.getpid(), signal.SIGTERM))
    assert under_ncu(project) == (2, "--ncu was interrupted: not all of its reports are kept", LEFT)


@pytest.mark.parametrize(
    ("log", "captured", "status", "sentence"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM: no permission", True, 1, f"(ERR_NVGPUCTRPERM): {export.PERMISSION}"),
        ("==PROF== a\n==WARNING== No kernels were profiled.", True, 1, "(No kernels were profiled.): run it by hand"),
        ("", True, 1, "ncu made no report (it said no error): run it by hand to see more"),
        ("", False, 5, ""),  # where no side was captured, no report is expected
    ],
)
def test_without_a_report_of_ncu_its_problem_is_named(
    project: Path, log: str, captured: bool, status: int, sentence: str
) -> None:
    ended, printed, kept = under_ncu(project, log, reports=False, captured=captured)
    assert (ended, kept) == (status, LEFT)
    assert sentence in printed
    assert bool(printed) == bool(sentence)


# A profiler with a daemon that leaves its session and its parents, and gives its id away.
DAEMON = """
import os, sys, time
from pathlib import Path
path = Path(sys.argv[1])
if os.fork():
    while not path.exists():
        time.sleep(0.01)
    time.sleep(float(sys.argv[2]))
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
Path(sys.argv[1] + ".part").write_text(str(os.getpid()))
Path(sys.argv[1] + ".part").rename(path)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_nothing_that_a_profiler_started_outlives_it(tmp_path: Path, number: signal.Signals | None) -> None:
    child = tmp_path / "child"
    command = [sys.executable, "-c", DAEMON, str(child), "600" if number else "0"]

    def interrupt(number: signal.Signals) -> None:
        wait_until(child.exists)
        os.kill(os.getpid(), number)

    if number is not None:
        threading.Thread(target=interrupt, args=(number,)).start()
    with pytest.raises(KeyboardInterrupt) if number else nullcontext(), treat_termination_as_ctrl_c():
        assert run_profiled(command, tmp_path, os.environ) == 0
    wait_until(lambda: not running(int(child.read_text())))


def test_what_was_asked_for(pytester: pytest.Pytester) -> None:
    def read(*options: str) -> Profiling | None:
        return read_options(pytester.parseconfig("-p", "gpugate.plugin", *options)).profiling

    assert read() is None
    assert read("--nsys") == Profiling("nsys", pytester.path / "gpugate-nsys")
    assert read("--nsys=a b") == Profiling("nsys", pytester.path / "a b")
    assert read("--ncu=3") == Profiling("ncu", pytester.path / "gpugate-ncu", kernels=3)
    assert read("--torch-trace") == Profiling("torch-trace", pytester.path / "gpugate-traces")


def test_what_a_report_may_show_of_the_environment() -> None:
    secrets = {"CI_JOB_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PIP_INDEX_URL", "SSH_AUTH_SOCK", "PATH_TOKEN"}
    needed = {"PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "LC_ALL", "OMP_NUM_THREADS", "PYTHONPATH"}
    assert set(allowed_variables(dict.fromkeys(secrets | needed, "x"))) == needed

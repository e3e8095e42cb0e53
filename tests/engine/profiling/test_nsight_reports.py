"""Runs under nsys or ncu: what is kept of them, what they may show, and that a profiler ends with what it started."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpugate.errors import EnvironmentUnfitError
from gpugate.machine.processes import treat_termination_as_ctrl_c
from gpugate.profiling import export, nsight_reports
from gpugate.profiling.export import Capture, CaptureIndex, SideLabel, safe_name
from gpugate.profiling.nsight_reports import (
    INTERRUPTED,
    ProfiledRun,
    allowed_variables,
    keep_reports,
    run_profiled,
    run_under_profiler,
)
from gpugate.session.options import Profiling, read_options
from tests.support.fake_ncu import install
from tests.support.fake_nsys import NVTX, on_path
from tests.support.patience import wait_until
from tests.support.profile_exports import ExportWriter
from tests.support.tiny_project import TinyProject, check_no_traceback, running

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
        self.problems = keep_reports(run, self.lines.append, isolated)
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
    endings = ("nsys-rep", "sqlite", "summary.md")
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


def test_a_single_report_may_have_no_number(keep: Callable[..., Kept]) -> None:
    assert (keep([captured(1)], "nsys-rep").folder / f"{STEM}.nsys-rep").read_text() == "nsys-rep"


def test_a_capture_that_is_not_whole_leaves_nothing_of_an_earlier_run(
    keep: Callable[..., Kept], tmp_path: Path
) -> None:
    for ending in ("nsys-rep", "sqlite", "summary.md"):
        (tmp_path / f"found/{STEM}.{ending}").touch()
    kept = keep([captured(1, complete=False)], "1.nsys-rep")
    assert (kept.problems, kept.names) == ([], [])


def test_without_a_report_the_capture_is_a_problem(keep: Callable[..., Kept]) -> None:
    kept = keep([captured(1)])
    assert kept.problems == [
        "nsys wrote no report of a/b/cuda optimized: look at its output, its importer may need libdw1"
    ]
    assert kept.lines[0].startswith("nsys: 0 reports in ")


def test_a_file_in_the_way_costs_no_other_report(keep: Callable[..., Kept], tmp_path: Path) -> None:
    (tmp_path / f"found/{STEM}.nsys-rep").mkdir()
    kept = keep([captured(1), captured(2, label="reference")], "1.nsys-rep", "2.nsys-rep")
    (problem,) = kept.problems
    assert problem.startswith(f"{STEM} was not kept (IsADirectoryError: ")
    assert problem.endswith("move what is in its way, or report this")
    assert "a+b+cuda.reference.nsys-rep" in kept.names


def test_where_nsys_may_see_other_processes_no_report_is_kept(keep: Callable[..., Kept]) -> None:
    kept = keep([captured(1)], "1.nsys-rep", isolated=False)
    (problem,) = kept.problems
    assert problem.startswith(f"{STEM}.nsys-rep was not kept, as nsys may read the variables of other processes here")
    assert kept.names == [f"{STEM}.summary.md"]
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
    status = run_under_profiler(Profiling("ncu", project / "found", kernels=30), ["-k", "x"], lines.append)
    return status, "\n".join(lines), sorted(path.name for path in (project / "found").iterdir())


def test_a_run_under_profiler_keeps_its_report_without_a_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# A profiler that starts a program in a session of its own, and gives its id away.
NESTED = """
import subprocess, sys, time
from pathlib import Path
apart = sys.argv[2] == "apart"
child = subprocess.Popen([sys.executable, "-c", sys.argv[3]], start_new_session=apart)
Path(sys.argv[1], "child.part").write_text(str(child.pid))
Path(sys.argv[1], "child.part").rename(Path(sys.argv[1], "child"))
sys.exit(child.wait())
"""
POLITE = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, lambda *_: sys.exit(2))
Path({!r}).write_text(str(os.getpid()))
time.sleep(600)
"""
# One that leaves its session and its parents, and gives its id away.
DAEMON = """
import os, sys, time
from pathlib import Path
path = Path(sys.argv[1])
if os.fork():
    while not path.exists():
        time.sleep(0.01)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
Path(sys.argv[1] + ".part").write_text(str(os.getpid()))
Path(sys.argv[1] + ".part").rename(path)
time.sleep(600)
"""


def started(folder: Path, how: str, program: str) -> tuple[int, int]:
    """The status, and the program's id."""
    command = [sys.executable, "-c", NESTED, str(folder), how, program]
    try:
        with treat_termination_as_ctrl_c():
            status = run_profiled(command, folder, dict(os.environ))
    except KeyboardInterrupt:
        status = INTERRUPTED
    return status, int((folder / "child").read_text())


def is_waiting() -> bool:
    """True once the main thread waits for the profiler's end: earlier, a signal would find no one who handles it."""
    assert threading.main_thread().ident is not None
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None and frame.f_code is not subprocess.Popen.wait.__code__:
        frame = frame.f_back
    return frame is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_the_program_and_ends_both(tmp_path: Path, number: signal.Signals) -> None:
    inner = tmp_path / "inner-pid"
    before = signal.getsignal(number)

    def interrupt() -> None:
        wait_until(lambda: (tmp_path / "child").exists() and inner.exists() and inner.read_text())
        wait_until(is_waiting)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    ended, child = started(tmp_path, "apart", POLITE.format(str(inner)))
    assert ended == INTERRUPTED
    wait_until(lambda: not running(child))
    assert signal.getsignal(number) is before


def test_one_that_does_not_end_when_it_is_asked_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsight_reports, "GRACE_S", 0.2)
    ready = tmp_path / "ready"
    stubborn = f"open({str(ready)!r}, 'w'); time.sleep(600)"
    stubborn = f"import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); {stubborn}"

    def interrupt() -> None:
        wait_until(lambda: (tmp_path / "child").exists() and ready.exists())
        wait_until(is_waiting)
        (tmp_path / "inner-pid").write_text((tmp_path / "child").read_text())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    status, child = started(tmp_path, "apart", stubborn)
    assert status == 2
    wait_until(lambda: not running(child))


def test_a_daemon_that_left_everyone_is_found_by_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DAEMON, str(tmp_path / "child")]
    assert run_profiled(command, tmp_path, os.environ) == 0
    wait_until(lambda: not running(int((tmp_path / "child").read_text())))


def test_a_command_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    missing = str(tmp_path / "nsys")
    with pytest.raises(EnvironmentUnfitError, match=r"nsys cannot be started .No such file or directory.: install it"):
        run_profiled([missing], tmp_path, {})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nsys", "--gate"], "--gate needs timings, and under a profiler they are not judged"),
        (["--ncu", "--perf-json=run.json"], "--perf-json needs timings, and under a profiler they are not judged"),
        (["--nsys", "--ncu"], "--nsys and --ncu would disturb each other: run one after the other"),
        (["--nsys="], "--nsys= names nothing: give a value behind it, or --nsys alone"),
        (["--ncu=0"], "--ncu is '0': give a whole number from 1 to 10000"),
        (["--nsys", "-n2"], "--nsys with -n would put the steps of several tests into one profile: use -n 0"),
    ],
)
def test_what_cannot_go_with_a_profile(tiny: TinyProject, options: list[str], sentence: str) -> None:
    before = tiny.files()
    result = tiny.run(*options)
    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.text
    check_no_traceback(result.text)
    assert tiny.files() == before


def test_what_was_asked_for(pytester: pytest.Pytester) -> None:
    def read(*options: str) -> Profiling | None:
        return read_options(pytester.parseconfig("-p", "gpugate.plugin", *options)).profiling

    assert read() is None
    assert read("--nsys") == Profiling("nsys", pytester.path / "gpugate-nsys")
    assert read("--nsys=a b") == Profiling("nsys", pytester.path / "a b")
    assert read("--ncu=3") == Profiling("ncu", pytester.path / "gpugate-ncu", kernels=3)
    assert read("--torch-trace") == Profiling("torch-trace", pytester.path / "gpugate-traces")


def test_ids_that_differ_have_names_that_do_and_fit_a_file() -> None:
    long = ["resnet/" + "x" * 193 + end for end in ("", "x", "y")]
    assert safe_name("two-layer-net/cuda-graph/cuda") == "two-layer-net+cuda-graph+cuda"
    assert [len(safe_name(case_id)) for case_id in long] == [120] * 3
    assert len(set(map(safe_name, long))) == 3


def test_what_a_report_may_show_of_the_environment() -> None:
    secrets = {"CI_JOB_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PIP_INDEX_URL", "SSH_AUTH_SOCK", "PATH_TOKEN"}
    needed = {"PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "LC_ALL", "OMP_NUM_THREADS", "PYTHONPATH"}
    assert set(allowed_variables(dict.fromkeys(secrets | needed, "x"))) == needed

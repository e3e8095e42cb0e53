"""Children that are left over when a run ends."""

import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gpugate.machine import processes
from gpugate.machine.processes import end_children, list_children, name_left_over
from tests.support.patience import HANGS_S
from tests.support.tiny_project import TinyProject, running

ENDING_S = 0.2
FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def sleeping(daemon: bool) -> multiprocessing.process.BaseProcess:
    child = FORK.Process(target=time.sleep, args=(300,), daemon=daemon)
    child.start()
    return child


def ends_with(child: multiprocessing.process.BaseProcess) -> Callable[[], float]:
    """A clock on which the time to end is over when this child has ended, however long that takes it."""
    began = time.monotonic()

    def now() -> float:
        hangs = time.monotonic() > began + HANGS_S
        return (0.0 if child.is_alive() else ENDING_S) + 2 * ENDING_S * hangs

    return now


def test_one_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, well = sleeping(daemon=True), sleeping(daemon=True)
    monkeypatch.setattr(processes, "ENDING_S", ENDING_S)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=ends_with(well), sleep=time.sleep))
    assert stopped.pid is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)  # a signal takes effect when it likes
    end_children()
    assert (stopped.exitcode, well.exitcode) == (-signal.SIGKILL, -signal.SIGTERM)


def test_one_that_may_outlive_it_goes_on() -> None:
    child = sleeping(daemon=False)
    try:
        end_children()
        assert child.is_alive()
    finally:
        child.kill()
        child.join()


def await_command(pid: int) -> None:
    """Waits until the system shows the command of the child: it shows none while it loads the program."""
    until = time.monotonic() + HANGS_S
    while not list_children()[pid] and time.monotonic() < until:
        time.sleep(0.01)


def test_a_child_of_a_side_that_outlives_close_is_named_and_ended_with_the_run() -> None:
    older, notes = subprocess.Popen(["/bin/sleep", "301"]), set[str]()
    try:
        with name_left_over("tiny/quick/cpu", notes):
            left = subprocess.Popen(["/bin/sleep", "302"])
            await_command(left.pid)
        assert older.poll() is left.poll() is None
        end_children()
        assert [note.partition(" outlived")[0] for note in notes] == [
            f"tiny/quick/cpu: process {left.pid} (/bin/sleep 302)"
        ]
        assert left.wait() == -signal.SIGTERM
        assert older.poll() is None
    finally:
        older.kill()
        older.wait()


def test_workers_that_serve_the_whole_run_are_not_named() -> None:
    multiprocessing.resource_tracker.ensure_running()
    script = ["-c", "import time; time.sleep(300)", "/a/torch/_inductor/compile_worker/__main__.py"]
    with subprocess.Popen([sys.executable, *script]) as worker:
        commands = list_children()
        assert worker.pid not in commands
        assert multiprocessing.resource_tracker._resource_tracker._pid not in commands
        worker.kill()


def test_the_report_names_the_case_whose_process_is_left(tiny: TinyProject) -> None:
    leaves = """
import subprocess

def quick(context):
    child = subprocess.Popen(["/bin/sleep", "303"])
    Path(__file__).with_name("child").write_text(str(child.pid))
    return sleeping(1)
"""
    tiny.workload(leaves)
    result = tiny.run("--perf-device=cpu", "-k", "outputs")
    child = int((tiny.path / "child").read_text())
    assert f"tiny/quick/cpu: process {child} (/bin/sleep 303) outlived close()" in result.text
    assert not running(child)

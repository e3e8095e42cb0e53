"""The processes below this one: those that work for a side, and the CPU time of all of them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from gpugate.machine import processes
from gpugate.machine.processes import (
    end_children,
    list_children,
    list_descendants,
    treat_termination_as_ctrl_c,
    worker_cpu_ns,
)
from tests.support.patience import wait_until
from tests.support.tiny_project import TinyProject, running

PROGRAM = [sys.executable, "-I", "-S", "-c", "import time\nwhile True: time.sleep(0.01)"]


def test_a_process_that_the_fork_server_forked_works_and_the_server_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    server, compiler = f"python -c from {processes.FORK_SERVER} import main", f"python {processes.HELPERS[0]}"
    found = {1: (os.getpid(), server), 2: (1, server), 3: (2, "ffmpeg"), 4: (os.getpid(), compiler), 5: (4, compiler)}
    monkeypatch.setattr(processes, "_read_descendants", lambda: found)
    assert list_descendants() == {2, 3}
    assert list_children() == {}


def test_descendants_are_the_children_of_children_too() -> None:
    nested = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"import subprocess; subprocess.run({PROGRAM!r})"], start_new_session=True
    )
    try:
        wait_until(lambda: any(pid not in list_children() for pid in list_descendants()))
        assert nested.pid in list_children()
        assert nested.pid in list_descendants()
    finally:
        os.killpg(nested.pid, signal.SIGKILL)
        nested.wait()


def test_the_work_of_children_counts() -> None:
    """The CPU time of a child that is running, and of one that has ended."""
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint(1, flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        before_ns = worker_cpu_ns([])
        child.stdout.read(1)
        running_ns = worker_cpu_ns([child.pid]) - before_ns
        child.communicate(b"\n")
    assert running_ns >= 2e8
    assert worker_cpu_ns([]) - before_ns >= running_ns


# --- children that are left over when a run ends ----------------------------------------------------------------------


FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def sleeping(daemon: bool) -> multiprocessing.process.BaseProcess:
    child = FORK.Process(target=time.sleep, args=(300,), daemon=daemon)
    child.start()
    return child


def test_one_that_does_not_answer_is_killed() -> None:
    stopped = sleeping(daemon=True)
    assert stopped.pid is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)  # a signal takes effect when it likes
    end_children()
    assert stopped.exitcode == -signal.SIGKILL


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


# --- SIGTERM and SIGHUP as Ctrl-C -------------------------------------------------------------------------------------


ENDING = [signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ENDING)
def test_it_is_ctrl_c_until_the_end_and_then_what_it_was_before(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), treat_termination_as_ctrl_c():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.fixture
def nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def test_what_nohup_ignores_stays_ignored(nohup: None) -> None:
    with treat_termination_as_ctrl_c():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_ends_by_it() -> None:
    with treat_termination_as_ctrl_c():
        child = os.fork()
        if not child:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os._exit(7)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_another_thread_changes_nothing() -> None:
    seen = []

    def ask() -> None:
        with treat_termination_as_ctrl_c():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_a_thread_is_named_for_which_python_waits_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CLOSING_S", 0.05)
    ended, notes = threading.Event(), set[str]()
    spawned = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor() as pool, ProcessPoolExecutor(1, spawned) as worker:
        with processes.name_left_over("tiny/quick/cpu", notes):
            pool.submit(ended.wait)
            worker.submit(abs, -1).result()
            for name, daemon in (("fills", False), ("watches", True)):
                threading.Thread(target=ended.wait, name=name, daemon=daemon).start()
        ended.set()
    (note,) = (note for note in notes if ": thread " in note)
    assert note.startswith("tiny/quick/cpu: thread fills outlived close(): end it there")

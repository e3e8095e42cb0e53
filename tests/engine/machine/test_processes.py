"""The processes below this one: those that work for a side, and the CPU time of all of them."""

import os
import signal
import subprocess
import sys

import pytest

from gpugate.machine import processes
from gpugate.machine.processes import list_children, list_descendants, worker_cpu_ns
from tests.support.patience import wait_until

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

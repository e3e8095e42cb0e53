"""A profiler and what it started end together, whoever ends first."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from gpugate.errors import EnvironmentUnfitError
from gpugate.profiling import profiled_process
from gpugate.profiling.profiled_process import run_profiled
from tests.tiny_project import running, wait_until

# A profiler that starts a program in a session of its own, and gives its id away.
NESTED = """
import subprocess, sys, time
from pathlib import Path
apart = sys.argv[2] == "apart"
child = subprocess.Popen([sys.executable, "-c", sys.argv[3]], start_new_session=apart)
Path(sys.argv[1], "child.part").write_text(str(child.pid))
Path(sys.argv[1], "child.part").rename(Path(sys.argv[1], "child"))
if sys.argv[2] == "leaves":
    sys.exit(3)
sys.exit(child.wait())
"""
SLEEPS = "import time; time.sleep(600)"
POLITE = """
import os, signal, sys, time
from pathlib import Path
def end(*_):
    sys.exit(2)
signal.signal(signal.SIGINT, end)
Path(sys.argv[1]).write_text(str(os.getpid())) if len(sys.argv) > 1 else None
time.sleep(600)
"""


def started(folder: Path, how: str, program: str) -> tuple[int, int]:
    """The status, and the program's id."""
    status = run_profiled([sys.executable, "-c", NESTED, str(folder), how, program], folder, dict(os.environ))
    return status, int((folder / "child").read_text())


def test_the_status_is_the_programs(tmp_path: Path) -> None:
    status, child = started(tmp_path, "stays", "raise SystemExit(7)")
    assert status == 7
    assert not running(child)


def test_a_program_that_its_profiler_leaves_behind_is_killed(tmp_path: Path) -> None:
    status, child = started(tmp_path, "leaves", SLEEPS)
    assert status == 3
    assert not running(child)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 2), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_interrupts_the_program_and_ends_both(tmp_path: Path, number: signal.Signals, status: int) -> None:
    inner = tmp_path / "inner-pid"
    program = POLITE.replace("sys.argv[1]", repr(str(inner))).replace(" if len(sys.argv) > 1 else None", "")
    before = signal.getsignal(number)

    def interrupt() -> None:
        wait_until(lambda: inner.exists() and inner.read_text())
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    ended, child = started(tmp_path, "apart", program)
    assert ended == status
    assert not running(child)
    assert signal.getsignal(number) is before


def test_one_that_does_not_end_when_it_is_asked_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiled_process, "GRACE_S", 0.2)
    stubborn = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"

    def interrupt() -> None:
        wait_until((tmp_path / "child").exists)
        (tmp_path / "inner-pid").write_text((tmp_path / "child").read_text())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    status, child = started(tmp_path, "apart", stubborn)
    assert status == 2
    assert not running(child)


def test_a_command_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    missing = str(tmp_path / "nsys")
    with pytest.raises(EnvironmentUnfitError, match=r"nsys cannot be started .No such file or directory.: install it"):
        run_profiled([missing], tmp_path, {})

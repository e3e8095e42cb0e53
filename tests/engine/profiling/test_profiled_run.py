"""A profiler and what it started end together, whoever ends first."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpugate.errors import EnvironmentUnfitError
from gpugate.profiling import nsight_reports
from gpugate.profiling.nsight_reports import INTERRUPTED, run_profiled
from gpugate.session.termination import treat_termination_as_ctrl_c
from tests.support.patience import wait_until
from tests.support.tiny_project import running

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

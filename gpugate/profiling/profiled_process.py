"""A profiler that runs pytest: when we are interrupted pytest ends as by Ctrl-C, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gpugate.errors import EnvironmentUnfitError
from gpugate.profiling.capture_index import FOLDER_VARIABLE, INNER_PID, OUTER_PID
from gpugate.session.child_process import program_command

GRACE_S = 5.0  # for pytest to close what it has open
KILLED_S, LOOK_S = 10.0, 0.1
INTERRUPTED = 2


@dataclass(frozen=True)
class Ended:
    """How a profiler ended; `cut_off`: because we were told to, so that its reports are not whole."""

    status: int
    cut_off: bool = False


class EndedFromOutsideError(BaseException):
    """SIGTERM or SIGHUP reached this process; `status` is the exit status that says so."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number


TO_END = (KeyboardInterrupt, EndedFromOutsideError)  # what says that we are to end


def status_of(ending: BaseException) -> int:
    """The exit status of a run that one of `TO_END` has ended."""
    return ending.status if isinstance(ending, EndedFromOutsideError) else INTERRUPTED


def run_profiled(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Ended:
    """Runs `command` in the working folder to its end; its exit status is negative for a signal.

    Ctrl-C, SIGTERM and SIGHUP reach pytest as Ctrl-C; once it has ended, or at the second one, everything is killed: a
    profiler would make reports for minutes. The status is then 2, as pytest's own, or 128 + the number of the signal.
    Raises EnvironmentUnfitError where the command cannot be started.
    """
    (folder / OUTER_PID).write_text(str(os.getpid()), encoding="utf-8")
    try:
        # A session of its own: a terminal's Ctrl-C would make the profiler give up before pytest has ended.
        started = program_command(command)
        process = subprocess.Popen(started, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        raise EnvironmentUnfitError(f"{command[0]} cannot be started ({error.strerror}): install it anew") from None
    try:
        with signals_as_errors():
            try:
                return Ended(_wait(process))
            except TO_END as ending:
                with suppress(*TO_END):
                    _interrupt(process, folder)
                return Ended(status_of(ending), cut_off=True)
    finally:
        _kill_all(process, folder)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Waits in short turns: an endless wait may not see a signal that comes as it begins."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(LOOK_S)


def _interrupt(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Ctrl-C for pytest alone, and the time to end; where it does not run yet there is nothing to close."""
    path = folder / INNER_PID
    inner = int(path.read_text(encoding="utf-8")) if path.exists() else None
    deadline = time.monotonic() + GRACE_S
    with suppress(ProcessLookupError):
        if inner is not None:
            os.kill(inner, signal.SIGINT)
    while inner in _processes() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(LOOK_S)


@contextmanager
def signals_as_errors() -> Iterator[None]:
    """SIGTERM and SIGHUP raise EndedFromOutsideError in the main thread; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_it(number: int, frame: FrameType | None) -> None:
        raise EndedFromOutsideError(number)

    before = {number: signal.signal(number, raise_it) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _kill_all(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kills the process, its descendants, the rest of its session and what else knows the folder, until none is left:
    a profiler's daemon has left all of the former."""
    mine: set[int] = set()
    deadline = time.monotonic() + KILLED_S
    while True:
        table = _processes()
        mine |= {pid for pid, (_, session) in table.items() if session == process.pid or _knows(pid, folder)}
        while more := {pid for pid, (parent, _) in table.items() if parent in mine} - mine:
            mine |= more
        left = mine & table.keys()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        if not left or time.monotonic() >= deadline:
            return
        time.sleep(LOOK_S)


def _knows(pid: int, folder: Path) -> bool:
    """Whether the process was started with the variable that names the folder."""
    try:
        return f"{FOLDER_VARIABLE}={folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _processes() -> dict[int, tuple[int, int]]:
    """The parent and the session of every process that has not ended; see proc_pid_stat(5)."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, _, session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if state not in "XZ":
                found[int(path.parent.name)] = (int(parent), int(session))
    return found

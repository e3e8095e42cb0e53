"""A plain `pytest ... --nsys` starts itself once under the profiler, and reports the result when that run has ended."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gpugate.errors import EnvironmentUnfitError, OptionError
from gpugate.profiling import capture_index
from gpugate.profiling.capture_index import FOLDER_VARIABLE, INNER_PID, OUTER_PID, CaptureIndex
from gpugate.profiling.isolated_environment import allowed
from gpugate.report.night_files import RUN
from gpugate.session.child_process import program_command
from gpugate.session.options import Profiling
from gpugate.session.termination import delay_signals

LOCK_NAME = ".lock"
_UNFINISHED = ".capturing-"


@contextmanager
def held(folder: Path, option: str) -> Iterator[Path]:
    """Makes the folder, keeps other runs out of it, and yields one inside it that goes when all is over.

    Raises OptionError, naming `option`, where it cannot be written, holds a night, or another run is at work in it.
    """
    if (folder / RUN).exists():  # whose summary.md would be replaced
        raise OptionError(f"{option} {folder} is the record of a night, with its {RUN}: give a folder beside it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OptionError(f"{option} {folder} cannot be written ({error.strerror}): give another folder") from None
    try:
        _lock(descriptor, folder, option)
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        with _temporary(folder, option) as inside:
            yield inside
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, option: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        problem = (
            "is in use by another run" if isinstance(error, BlockingIOError) else f"has no locks ({error.strerror})"
        )
        raise OptionError(f"{option} {folder} {problem}: give another folder") from None


@contextmanager
def _temporary(folder: Path, option: str) -> Iterator[Path]:
    try:
        inside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    except OSError as error:
        raise OptionError(f"{option} {folder} cannot be written ({error.strerror}): give another folder") from None
    try:
        yield inside
    finally:
        with delay_signals():  # a second Ctrl-C would end the removal halfway
            shutil.rmtree(inside, ignore_errors=True)


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


FAILED, NOTHING_COLLECTED = 1, 5


@dataclass(frozen=True)
class ProfiledRun:
    """A run under a profiler that has ended. `folder` goes when it has been told of."""

    profiling: Profiling
    folder: Path
    environment: Mapping[str, str]
    index: CaptureIndex


Command = Callable[[Path, Mapping[str, str]], list[str]]
Tell = Callable[[ProfiledRun], list[str]]


def start_profiled(
    profiling: Profiling, arguments: Sequence[str], command: Command, tell: Tell, say: Callable[[str], None]
) -> int:
    """Runs pytest with `arguments` behind what `command` makes of the shared folder; returns the exit status of all.

    `tell` keeps the artifacts and returns what is wrong with them, which makes an exit status of 0 one of 1. Raises
    OptionError for a folder that cannot be written and EnvironmentUnfitError for a profiler that cannot be used.
    """
    try:
        with signals_as_errors():
            return _started(profiling, arguments, command, tell, say)
    except TO_END as ending:
        say(f"--{profiling.tool} was interrupted: not all of its reports are kept")
        return status_of(ending)


def _started(
    profiling: Profiling, arguments: Sequence[str], command: Command, tell: Tell, say: Callable[[str], None]
) -> int:
    with held(profiling.folder, f"--{profiling.tool}") as folder:
        environment = {**allowed(os.environ), FOLDER_VARIABLE: str(folder), "COLUMNS": str(_columns())}
        pytest = [sys.executable, "-m", "pytest", *arguments, *_colour()]
        ended = run_profiled([*command(folder, environment), *pytest], folder, environment)
        if ended.cut_off:
            say(f"--{profiling.tool} was interrupted: none of its reports is kept")
            return ended.status
        run = ProfiledRun(profiling, folder, environment, capture_index.read(folder))
        problems = tell(run)
        if run.index.status is None:
            problems.append(
                f"pytest did not end by itself under {profiling.tool}, which ended with status {ended.status}"
            )
        elif run.index.status == 0 and ended.status:
            problems.append(f"{profiling.tool} ended with status {ended.status}, after all tests had passed")
        for problem in problems:
            say(f"ERROR: {problem}")
    # What pytest says counts; the profiler's own status only where pytest could say nothing, or all went well.
    status = run.index.status or (ended.status if ended.status >= 0 else 128 - ended.status)
    return status or (FAILED if problems else 0)


def _columns() -> int:
    return shutil.get_terminal_size((140, 24)).columns


def _colour() -> list[str]:
    """A profiler passes the output on, so that pytest sees no terminal."""
    return ["--color=yes"] if sys.stdout.isatty() and "NO_COLOR" not in os.environ else []

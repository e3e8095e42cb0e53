"""A plain `pytest ... --nsys` starts itself once under the profiler, and reports the result when that run has ended.

Where it is interrupted, pytest ends as by Ctrl-C, and nothing that the profiler started is left running.
"""

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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gpugate.errors import EnvironmentUnfitError, OptionError
from gpugate.profiling.capture_index import FOLDER_VARIABLE, INNER_PID, OUTER_PID, CaptureIndex, read_index
from gpugate.profiling.isolated_environment import allowed_variables
from gpugate.report.night_files import RUN
from gpugate.session.child_process import program_command
from gpugate.session.options import Profiling
from gpugate.session.termination import delay_signals

FAILED, INTERRUPTED = 1, 2  # pytest's exit statuses
GRACE_S = 5.0  # for pytest to close what it has open
KILLED_S, LOOK_S = 10.0, 0.1
_UNFINISHED = ".capturing-"


@dataclass(frozen=True)
class ProfiledRun:
    """A run under a profiler that has ended. `folder` is removed when its captures have been kept."""

    profiling: Profiling
    folder: Path
    environment: Mapping[str, str]
    index: CaptureIndex


class EndedFromOutsideError(BaseException):
    """SIGTERM or SIGHUP reached this process; `status` is the exit status that says so."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number


def start_profiled(
    profiling: Profiling,
    arguments: Sequence[str],
    command: Callable[[Path], list[str]],
    keep: Callable[[ProfiledRun], list[str]],
    say: Callable[[str], None],
) -> int:
    """Runs pytest with `arguments` behind the profiler's `command`, which gets the folder to write into; returns the
    exit status of all.

    `keep` keeps the artifacts and returns what is wrong with them, which makes an exit status of 0 one of 1. Raises
    OptionError for a folder that cannot be written and EnvironmentUnfitError for a profiler that cannot be used.
    """
    tool = profiling.tool
    try:
        with signals_as_errors(), hold_folder(profiling.folder, f"--{tool}") as folder:
            columns = shutil.get_terminal_size((140, 24)).columns
            environment = {**allowed_variables(os.environ), FOLDER_VARIABLE: str(folder), "COLUMNS": str(columns)}
            # A profiler passes the output on, so that pytest sees no terminal.
            colour = ["--color=yes"] if sys.stdout.isatty() and "NO_COLOR" not in os.environ else []
            pytest = [sys.executable, "-m", "pytest", *arguments, *colour]
            ended = run_profiled([*command(folder), *pytest], folder, environment)
            index = read_index(folder)
            problems = keep(ProfiledRun(profiling, folder, environment, index))
    except (KeyboardInterrupt, EndedFromOutsideError) as ending:
        say(f"--{tool} was interrupted: not all of its reports are kept")
        return ending.status if isinstance(ending, EndedFromOutsideError) else INTERRUPTED
    if index.status is None:
        problems.append(f"pytest did not end by itself under {tool}, which ended with status {ended}")
    elif index.status == 0 and ended:
        problems.append(f"{tool} ended with status {ended}, after all tests had passed")
    for problem in problems:
        say(f"ERROR: {problem}")
    # What pytest says counts; the profiler's own status only where pytest could say nothing, or all went well.
    return index.status or (ended if ended >= 0 else 128 - ended) or (FAILED if problems else 0)


@contextmanager
def hold_folder(folder: Path, option: str) -> Iterator[Path]:
    """Makes the folder, keeps other runs out of it, and yields one inside it that is removed at the end.

    What a run that was killed has left is removed too. Raises OptionError, naming `option`, where the folder cannot be
    written, holds a night, or another run is at work in it.
    """
    if (folder / RUN).exists():  # whose summary.md would be replaced
        raise OptionError(f"{option} {folder} is the record of a night, with its {RUN}: give a folder beside it")
    problem = "cannot be written ({})"
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / ".lock").open("a"))
            problem = "has no locks ({})"
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            problem = "cannot be written ({})"
            for left in folder.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(left, ignore_errors=True)
            inside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
        except OSError as error:
            in_use = isinstance(error, BlockingIOError)
            why = "is in use by another run" if in_use else problem.format(error.strerror)
            raise OptionError(f"{option} {folder} {why}: give another folder") from None
        try:
            yield inside
        finally:
            with delay_signals():  # a second Ctrl-C would end the removal halfway
                shutil.rmtree(inside, ignore_errors=True)


def run_profiled(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Runs `command` in the working folder to its end; its exit status is negative for a signal.

    Where this process is interrupted, pytest gets Ctrl-C; once it has ended, or at the second interrupt, everything is
    killed: a profiler would make reports for minutes. Raises EnvironmentUnfitError where the command cannot be started.
    """
    (folder / OUTER_PID).write_text(str(os.getpid()), encoding="utf-8")
    try:
        # A session of its own: a terminal's Ctrl-C would make the profiler give up before pytest has ended.
        started = program_command(command)
        process = subprocess.Popen(started, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        raise EnvironmentUnfitError(f"{command[0]} cannot be started ({error.strerror}): install it anew") from None
    try:
        while True:  # in short turns: an endless wait may not see a signal that comes as it begins
            with suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK_S)
    except (KeyboardInterrupt, EndedFromOutsideError):
        with suppress(KeyboardInterrupt, EndedFromOutsideError):
            _interrupt_pytest(process, folder)
        raise
    finally:
        _kill_all(process, folder)


def _interrupt_pytest(process: subprocess.Popen[bytes], folder: Path) -> None:
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
    """Kills the process, its descendants, the rest of its session and every process whose environment names the folder,
    until none is left: a profiler's daemon has left all of the former."""
    mine: set[int] = set()
    variable = f"{FOLDER_VARIABLE}={folder}".encode()
    deadline = time.monotonic() + KILLED_S
    while True:
        table = _processes()
        mine |= {pid for pid, (_, session) in table.items() if session == process.pid or variable in _environ(pid)}
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


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _processes() -> dict[int, tuple[int, int]]:
    """The parent and the session of every process that has not ended; see proc_pid_stat(5)."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, _, session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if state not in "XZ":
                found[int(path.parent.name)] = (int(parent), int(session))
    return found

"""A plain `pytest ... --nsys` starts itself once under the profiler, and reports the result when that run has ended.

Where it is interrupted, pytest ends as by Ctrl-C, and nothing that the profiler started is left running.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpugate.errors import EnvironmentUnfitError, OptionError
from gpugate.machine.children import program_command, start_child
from gpugate.profiling.capture_index import FOLDER_VARIABLE, INNER_PID, OUTER_PID, CaptureIndex, read_index
from gpugate.profiling.isolated_environment import allowed_variables
from gpugate.report.terminal import terminal_columns
from gpugate.session.options import Profiling
from gpugate.session.termination import delay_signals, treat_termination_as_ctrl_c
from gpugate.store.writable_folder import lock_folder

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


def start_profiled(
    profiling: Profiling,
    arguments: Sequence[str],
    command: Callable[[Path], list[str]],
    keep: Callable[[ProfiledRun], list[str]],
    print_line: Callable[[str], None],
) -> int:
    """Runs pytest with `arguments` behind the profiler's `command`, which gets the folder to write into; returns the
    exit status of both.

    `keep` keeps the artifacts and returns their problems, with which the status 0 becomes 1. Raises OptionError for a
    folder that cannot be written and EnvironmentUnfitError for a profiler that cannot be used.
    """
    tool = profiling.tool
    try:
        with treat_termination_as_ctrl_c(), hold_folder(profiling.folder, f"--{tool}") as folder:
            environment = {**allowed_variables(os.environ), "COLUMNS": str(terminal_columns())}
            # A profiler passes the output on, so that pytest sees no terminal.
            colour = ["--color=yes"] if sys.stdout.isatty() and "NO_COLOR" not in os.environ else []
            pytest = [sys.executable, "-m", "pytest", *arguments, *colour]
            ended = run_profiled([*command(folder), *pytest], folder, environment)
            index = read_index(folder)
            problems = keep(ProfiledRun(profiling, folder, environment, index))
    except KeyboardInterrupt:
        print_line(f"--{tool} was interrupted: not all of its reports are kept")
        return INTERRUPTED
    if index.status is None:
        problems.append(f"pytest did not end by itself under {tool}, which ended with status {ended}")
    elif index.status == 0 and ended:
        problems.append(f"{tool} ended with status {ended}, after all tests had passed")
    for problem in problems:
        print_line(f"ERROR: {problem}")
    # What pytest says counts; the profiler's own status only where pytest could say nothing, or all went well.
    return index.status or (ended if ended >= 0 else 128 - ended) or (FAILED if problems else 0)


@contextmanager
def hold_folder(folder: Path, option: str) -> Iterator[Path]:
    """Makes and locks the folder, removes what a killed run left in it, and yields a folder inside it, which is removed
    at the end. Raises OptionError, naming `option`, for a folder that cannot be written or is locked."""
    with lock_folder(folder, OptionError, f"{option} {folder}"):
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        inside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
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
        started = program_command(command)
    except OSError as error:
        raise EnvironmentUnfitError(f"{command[0]} cannot be started ({error.strerror}): install it anew") from None
    # In a session of its own: the Ctrl-C of a terminal would make the profiler give up before pytest has ended.
    known = {**environment, FOLDER_VARIABLE: str(folder)}
    with start_child(started, env=known, stdin=subprocess.DEVNULL) as process:
        try:
            while True:  # in short turns: an endless wait may not see a signal that comes as it begins
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(LOOK_S)
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt):
                _interrupt_pytest(folder)
            raise
        finally:
            _kill_all(folder)


def _interrupt_pytest(folder: Path) -> None:
    """Sends Ctrl-C to pytest alone and waits for its end; before pytest runs there is nothing to close."""
    with suppress(OSError):
        inner = int((folder / INNER_PID).read_text(encoding="utf-8"))
        deadline = time.monotonic() + GRACE_S
        os.kill(inner, signal.SIGINT)
        while _environment(inner) and time.monotonic() < deadline:
            time.sleep(LOOK_S)


def _kill_all(folder: Path) -> None:
    """Kills every process whose environment names the folder until none is left: a daemon of a profiler leaves the
    process group and the session of the run."""
    variable = f"{FOLDER_VARIABLE}={folder}".encode()
    deadline = time.monotonic() + KILLED_S
    while time.monotonic() < deadline:
        left = [int(path.name) for path in Path("/proc").glob("[0-9]*") if variable in _environment(int(path.name))]
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def _environment(pid: int) -> list[bytes]:
    """The variables of a process as they were at its start; empty once it has ended."""
    try:
        return [word for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if word]
    except OSError:
        return []

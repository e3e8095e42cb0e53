"""A plain `pytest ... --nsys` starts itself once under the profiler, and tells what came of it when that has ended."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpugate.profiling import artifact_folder, capture_index
from gpugate.profiling.capture_index import FOLDER_VARIABLE, CaptureIndex
from gpugate.profiling.environment_allow_list import allowed
from gpugate.profiling.profiled_process import TO_END, run_profiled, signals_as_errors, status_of
from gpugate.session.options import Profiling

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
    with artifact_folder.held(profiling.folder, f"--{profiling.tool}") as folder:
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

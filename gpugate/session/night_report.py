"""The files of `--perf-report DIR` beside the run: its screen as Markdown, and a page.

The page compares the night with the newest earlier one of the same machine beside it. pytest writes `DIR/junit.xml`,
where its `--junitxml` points.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from gpugate.errors import GpugateError, OptionError
from gpugate.machine.environment import machine_name
from gpugate.report.screen import night_summary
from gpugate.report.view import RunView
from gpugate.results.run import RunResult
from gpugate.store import run_file
from gpugate.store.json_file import write_atomically, writing
from gpugate.store.night_files import JUNIT, PAGE, RUN, SUMMARY
from gpugate.store.writable_folder import make_ignored


def prepare_night(folder: Path) -> None:
    """Makes the folder, and takes out of it what an earlier session left: a killed one must not look like that one.

    Raises OptionError where that cannot be done.
    """
    with _writing(folder):
        make_ignored(folder)
        for path in (folder / name for name in (RUN, SUMMARY, PAGE, JUNIT)):
            path.unlink(missing_ok=True)
        write_atomically(folder / SUMMARY, "**No result**: no case was selected, or the run was cut off.\n")


def write_pages(folder: Path, run: RunResult) -> None:
    """Replaces `summary.md` and `night.html`, each in one step. Raises OptionError where one cannot be made or written,
    whatever its own code raises: the session then ends red, and has its run."""
    from gpugate.report.pages.night import night_page  # with jinja2, which a session imports at its end

    view = RunView(run)
    pages: dict[str, Callable[[], str | bytes]] = {
        SUMMARY: lambda: night_summary(view),
        PAGE: lambda: night_page(view, find_last_night(folder, run)),
    }
    for name, make in pages.items():
        try:
            content = make()
        except Exception as error:
            problem = f"{folder / name} cannot be made ({type(error).__name__}: {error})"
            raise OptionError(f"{problem}: report it, with {RUN}, which has the whole run") from error
        with _writing(folder):
            write_atomically(folder / name, content)


def find_last_night(folder: Path, run: RunResult) -> tuple[str, RunResult] | str:
    """The folder's name and the run of the newest earlier night of this machine beside `folder`, which is of `run`.

    A sentence where there is none. Recordings, runs with a fault on purpose, shards, runs that were cut off and those
    that cannot be read do not count.
    """
    machine, started = machine_name(run.environment), run.started
    found = list[tuple[datetime.datetime, Path]]()
    for path in folder.resolve().parent.glob(f"*/{RUN}"):
        with suppress(GpugateError):
            environment, time, interrupted = run_file.read_start(path)
            if machine_name(environment) == machine and not interrupted and time < started:
                found.append((time, path))
    for _, path in sorted(found, reverse=True):
        with suppress(GpugateError):
            earlier = run_file.read(path)
            if not earlier.recording and earlier.mutated is None and earlier.shard is None:
                return path.parent.name, earlier
    return f"no earlier night of {machine} that can be read is beside this folder, so nothing is compared with it"


def _writing(folder: Path) -> AbstractContextManager[None]:
    return writing(f"--perf-report {folder}", OptionError, "give a folder that can be")

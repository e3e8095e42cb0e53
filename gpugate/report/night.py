"""The files of `--perf-report DIR`: the whole run as JSON, one screen of Markdown, and a page.

pytest writes `DIR/junit.xml`, where its `--junitxml` points.
"""

from __future__ import annotations

from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.report.last_night import NoLastNightError, find_last_night
from gpugate.report.view import RunView, view_run
from gpugate.results.run import RunResult
from gpugate.store import run_file
from gpugate.store.json_file import write_atomically
from gpugate.store.night_files import JUNIT, PAGE, RUN, SUMMARY
from gpugate.store.writable_folder import make_writable


class NightReportError(GpugateError):
    """The folder of `--perf-report` cannot be written."""


def prepare_night(folder: Path) -> None:
    """Makes the folder. An earlier night in it stays: it is not known yet whether anything runs.

    Raises NightReportError where it cannot be made or written.
    """
    try:
        make_writable(folder)
        if not (folder / SUMMARY).exists():
            write_atomically(folder / SUMMARY, "**No case began**: none was selected, or the run was cut off before.\n")
    except OSError as error:
        raise _unwritable(folder, error) from error


def begin_night(folder: Path, resume: bool = False) -> None:
    """Takes out of the folder what an earlier session left: a killed one must not look like that one.

    The run itself stays where it is resumed. To be called once it is known that a case runs. Raises NightReportError
    where that cannot be done.
    """
    try:
        if not resume:
            run_file.remove(folder / RUN)
        for name in (SUMMARY, PAGE, JUNIT):
            (folder / name).unlink(missing_ok=True)
        write_atomically(folder / SUMMARY, "**The run was cut off**: it wrote no summary.\n")
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_night(folder: Path, run: RunResult) -> None:
    """Replaces `summary.md`, `night.html` and at last `run.json`, each in one step.

    Raises NightReportError or RunFileError where one cannot be written, and FormatError as `run_file.write` does.
    """
    from gpugate.report.markdown import night_summary  # with jinja2, which a session imports at its end

    view = view_run(run)
    try:
        write_atomically(folder / SUMMARY, night_summary(view))
        write_atomically(folder / PAGE, _page(folder, view))
    except OSError as error:
        raise _unwritable(folder, error) from error
    run_file.write(folder / RUN, run)


def _page(folder: Path, view: RunView) -> bytes:
    """The page, with the changes since last night where there is one."""
    from gpugate.report.pages.night import night_page

    try:
        return night_page(view, find_last_night(folder, view.run))
    except NoLastNightError as error:
        return night_page(view, None, str(error))


def _unwritable(folder: Path, error: OSError) -> NightReportError:
    problem = error.strerror or str(error)
    return NightReportError(f"--perf-report {folder} cannot be written ({problem}): give a folder that can be")

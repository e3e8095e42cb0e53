"""Running nsys on a report that is there: exporting it. It records nothing and needs no GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpugate.profiling.artifact_names import EXPORT, REPORT
from gpugate.profiling.export_schema import ProfileError
from gpugate.profiling.nsight_tools import Nsys, ended, found
from gpugate.store.writable_folder import prepare_unfinished

EXPORT_S = 600.0
LAST_WORDS = 200


def find_nsys() -> str:
    """The path of nsys. Raises ProfileError where there is none."""
    path = found("nsys")
    if path is None:
        raise ProfileError("nsys was not found: install Nsight Systems, or put its nsys on PATH")
    return path


def run_nsys(arguments: Sequence[str | Path], timeout_s: float, nsys: Nsys | None = None) -> str:
    """What `nsys ARGUMENTS` prints, both streams together. Without an `nsys` it is the one that is found, with our
    environment.

    Raises ProfileError where it cannot be started, fails or takes too long; then nothing of it goes on running.
    """
    path, environment = (nsys.path, nsys.environment) if nsys is not None else (find_nsys(), None)
    doing = f"`nsys {arguments[0]}`"
    try:
        process = ended([path, *map(str, arguments)], timeout_s, environment)
    except OSError as error:
        raise ProfileError(f"{path} cannot be started ({error.strerror}): install Nsight Systems anew") from error
    except subprocess.TimeoutExpired:
        raise ProfileError(f"{doing} did not end within {timeout_s:g} s: run it by hand to see why") from None
    if process.returncode:
        lines = [line.strip() for line in process.stdout.splitlines() if line.strip()]
        last = lines[-1][:LAST_WORDS] if lines else "it said nothing"
        raise ProfileError(f"{doing} ended with status {process.returncode} ({last}): run it by hand to see more")
    return process.stdout


def as_export(path: Path) -> Path:
    """The export of a report, by its name; any other file as it is. Raises ProfileError as `exported` does."""
    return exported(path) if path.suffix == REPORT else path


def exported(report: Path, nsys: Nsys | None = None) -> Path:
    """The SQLite export beside a .nsys-rep, made anew where it is not there or older than the report.

    Raises ProfileError where there is no report or no nsys, where the export fails, or cannot be written.
    """
    if not report.is_file():
        raise ProfileError(f"{report} is no file: give a .nsys-rep, or what nsys exported from it")
    sqlite = report.with_suffix(EXPORT)
    if sqlite.is_file() and sqlite.stat().st_size and sqlite.stat().st_mtime >= report.stat().st_mtime:
        return sqlite
    # A name of its own until it is whole: an export that is cut off must not pass for one.
    partial = prepare_unfinished(report.with_suffix(""), EXPORT)
    try:
        options = ["--type=sqlite", "--force-overwrite=true", f"--output={partial}"]
        run_nsys(["export", *options, report], EXPORT_S, nsys)
        if not partial.is_file():
            raise ProfileError(f"nsys exported nothing from {report}: profile again, the report is damaged")
        partial.replace(sqlite)
    except OSError as error:
        raise ProfileError(
            f"{sqlite} cannot be written ({error.strerror}): move the report to another folder"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return sqlite

"""The file of `--perf-json`: everything that one session knows, rewritten after every case and valid at any moment."""

from __future__ import annotations

from pathlib import Path

from gpugate.codec import (
    FormatError,
    NewerFormatError,
    from_json,
    parse,
    pretty,
    to_json,
    with_header,
    without_header,
    write_atomically,
)
from gpugate.errors import GpugateError
from gpugate.result import RunResult

FORMAT = "gpugate-run"
# History: 1: RunResult as it is, instances in columns. 2: what each case was judged by, and its further attempts.
FORMAT_VERSION = 2


class RunFileError(GpugateError):
    """A `--perf-json` file cannot be written or read."""


def write(path: Path, run: RunResult) -> None:
    """Replaces the file at `path`, in a folder that exists, in one step.

    Raises RunFileError where it cannot be written (the old file then stays) and FormatError for a number in `run` that
    JSON cannot carry.
    """
    text = pretty(with_header(FORMAT, FORMAT_VERSION, to_json(run))) + "\n"
    try:
        write_atomically(path, text)
    except OSError as error:
        problem = error.strerror or str(error)
        raise RunFileError(f"{path} cannot be written ({problem}): give --perf-json another path") from error


def read(path: Path) -> RunResult:
    """Raises RunFileError for a file that is not there, damaged, or of a newer format."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise RunFileError(f"{path} cannot be read ({problem}): give a file that --perf-json wrote") from error
    try:
        return from_json(RunResult, without_header(FORMAT, FORMAT_VERSION, parse(text)))
    except NewerFormatError as error:
        raise RunFileError(f"{path} was {error}: upgrade gpugate or measure again") from error
    except FormatError as error:
        raise RunFileError(f"{path} cannot be used because {error}: write it again with --perf-json") from error

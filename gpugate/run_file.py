"""The file of `--perf-json`: everything that one session knows, rewritten after every case and valid at any moment."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from gpugate import __version__
from gpugate.codec import (
    FormatError,
    from_json,
    naming_the_file,
    parse,
    pretty,
    to_json,
    with_header,
    without_header,
    write_atomically,
)
from gpugate.errors import GpugateError
from gpugate.result import RunResult

FAMILY = "gpugate-"  # which every format of ours begins with
FORMAT = f"{FAMILY}run"
# History: 1: RunResult as it is, instances in columns. 2: what each case was judged by, and its further attempts.
# 3: the tolerance that was asked for, what a skipped case lacks, a fault put in on purpose, and times judged with the
# digits that are stored. 4: proofs, ladders and sweeps. 5: how many items a whole run has.
# 6: where the time of a step goes, and that of a measurement; what a wrong output looks like.
# 7: the checks that tests held, the exit status of pytest, and why it is 1 where no test failed.
FORMAT_VERSION = 7


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
    """Raises RunFileError for a file that is not there, damaged, or of another format."""
    with naming_the_file(
        path,
        RunFileError,
        unreadable="give a file that --perf-json wrote",
        damaged="write it again with --perf-json",
        instead_of_upgrading="measure again",
    ):
        document = parse(path.read_text(encoding="utf-8"))
        _refuse_another_of_ours(path, document)
        body = without_header(FORMAT, FORMAT_VERSION, document)
        found = cast(Mapping[str, int], document)["format_version"]
        if found < FORMAT_VERSION:
            older = f"was written by an older gpugate (format {found}, this one reads {FORMAT_VERSION})"
            raise RunFileError(f"{path} {older}: measure again")
        run = from_json(RunResult, body)
        problem = _contradiction(run)
        if problem is not None:
            raise FormatError(problem)
        return run


def _refuse_another_of_ours(path: Path, document: object) -> None:
    found = document.get("format") if isinstance(document, dict) else None
    if isinstance(found, str) and found.startswith(FAMILY) and found != FORMAT:
        raise RunFileError(f"{path} is a {found!r} file, not a {FORMAT!r} one: give a file that --perf-json wrote")


def read_to_decide_again(path: Path) -> RunResult:
    """As `read`, and raises RunFileError for a run of another version of the suite, whose rules are others."""
    run = read(path)
    version = run.environment.packages.get("gpugate", "of no known version")
    if version != __version__:
        raise RunFileError(
            f"{path} was decided by gpugate {version} and this is gpugate {__version__}, whose rules may be others: "
            "decide it again with the same version, or measure again"
        )
    for case_id, case in run.cases.items():
        if case.measurement is not None and case.promise is None:
            problem = f"cases.{case_id} was measured and has no promise"
            raise RunFileError(f"{path} cannot be used because {problem}: write it again with --perf-json")
    return run


def _contradiction(run: RunResult) -> str | None:
    try:
        known = datetime.datetime.fromisoformat(run.started_at).tzinfo is not None
    except ValueError:
        known = False
    if not known:
        return f"started_at is {run.started_at!r}, not an ISO 8601 time with the UTC offset"
    for case_id, case in run.cases.items():
        if case.case_id != case_id:
            return f"cases.{case_id} is of the case {case.case_id!r}"
    return None

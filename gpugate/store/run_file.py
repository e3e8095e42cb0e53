"""The file of `--perf-json`: all results of one session, readable at any moment.

While a session runs, the file contains its beginning, marked as interrupted, and each finished case is one line that is
appended to `<file>.cases` beside it: a case costs as much at the end of a session as at its start. The end of the
session writes one whole file and removes the lines. Every reader joins both, so a killed session keeps its cases. The
workers of a session append to the same lines.

A session removes the file of an earlier one at its start: where it dies, the earlier run is no answer about it.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from gpugate import __version__
from gpugate.errors import GpugateError
from gpugate.machine.environment import Environment
from gpugate.measurement.record import Yardstick
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from gpugate.store.codec import FormatError, from_json, to_json
from gpugate.store.json_file import JsonFile, parse
from gpugate.store.writable_folder import lock_folder

# 15, that of the oldest stored runs: without the spreads of a summary and the usual numbers of a record, which no rule
# reads. 16: without the side of a build that was built first. 17: the options that selected tests, not that some did.
# 18: without the best record beside the newest one, and the number of nights of a record. 19: without the cores of a
# record of other cores.
FORMAT_VERSION = 19
LINES = "cases"  # the ending of the file beside that of a session, with its finished cases


class RunFileError(GpugateError):
    """A `--perf-json` file cannot be written or read."""


FILE = JsonFile(
    "gpugate-run",
    FORMAT_VERSION,
    RunResult,
    RunFileError,
    step="give a file of --perf-json or a folder of --perf-report, or measure again",
    unwritable="give another path",
    oldest_version=15,  # of stored runs of results/
)


@contextmanager
def reserve(path: Path) -> Iterator[None]:
    """Removes the run of an earlier session at `path`, and keeps other sessions from it until the block ends.

    Raises RunFileError where another session writes it, or where it cannot be removed.
    """
    lock = _beside(path, "lock")
    with lock_folder(lock.parent, RunFileError, str(path), lock_name=lock.name):
        with FILE.writing(path):
            for each in (path, _beside(path, LINES)):
                each.unlink(missing_ok=True)
        yield


def append(path: Path, case: CaseResult, yardsticks: Sequence[Yardstick], run: RunResult) -> None:
    """Adds a finished case to the lines beside the file of the session, with the probes since the case before.

    Raises RunFileError where they cannot be written and FormatError for a number that JSON cannot carry: the lines
    that are there stay.
    """
    source_hash = run.source_hashes.get(case.workload)
    part = {
        "cases": {case.case_id: to_json(case)},
        "yardsticks": [to_json(one) for one in yardsticks],
        "source_hashes": {} if source_hash is None else {case.workload: source_hash},
        "wall_s": run.wall_s,
    }
    line = b"\n" + json.dumps(part, allow_nan=False).encode()  # which ends the line of a writer that was killed
    with FILE.writing(path), _beside(path, LINES).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # which ends with the process, even a killed one
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _beside(path: Path, ending: str) -> Path:
    target = path.resolve()
    return target.with_name(f"{target.name}.{ending}")


def write(path: Path, run: RunResult) -> None:
    """Replaces the file at `path`, in a folder that exists, in one step, and removes what is beside it.

    Raises RunFileError where it cannot be written (the old file then stays) and FormatError for a number in `run` that
    JSON cannot carry.
    """
    FILE.write(path, run)
    with FILE.writing(path):
        _beside(path, LINES).unlink(missing_ok=True)


def read(path: Path) -> RunResult:
    """Reads a run. Raises RunFileError for one that is absent, damaged, or of another format."""
    with FILE.reading(path):
        run = FILE.decode(_read_document(path))
        parse_time(run.started_at)
        return run


def read_night(path: Path) -> RunResult:
    """Reads a run without a fault on purpose. Raises RunFileError as `read` does, and for a run with one."""
    run = read(path)
    if run.mutated is not None:
        raise RunFileError(
            f"{path} was mutated by {run.mutated}, so it is no night: measure again without --perf-mutate"
        )
    return run


def read_start(path: Path) -> tuple[Environment, datetime.datetime, bool]:
    """Reads the machine of a run, its start, and whether it was cut off, which stand before its cases, whose samples
    are nearly all of the file. Raises as `read` does."""
    with FILE.reading(path):
        with path.open(encoding="utf-8") as file:
            # As `pretty` writes a field of the document.
            start = "".join(takewhile(lambda line: not line.startswith('  "cases":'), file))
        body = FILE.open(parse(start.rstrip().removesuffix(",") + "}"))
        started = parse_time(body.get("started_at"))
        return from_json(Environment, body.get("environment")), started, body.get("interrupted") is True


def _read_document(path: Path) -> object:
    """Reads the JSON document of a run, with the lines beside it where the session did not end.

    Raises OSError, UnicodeDecodeError and FormatError.
    """
    document: Any = parse(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("interrupted") is not True:
        return document
    try:
        lines = _beside(path, LINES).read_bytes().splitlines()
    except FileNotFoundError:
        return document
    for line in lines:
        with suppress(ValueError, LookupError, TypeError):  # of a line whose writer was killed, or a damaged document
            part: Any = parse(line.decode())
            document["cases"] |= part["cases"]
            document["source_hashes"] |= part["source_hashes"]
            document["yardsticks"] += part["yardsticks"]
            document["wall_s"] = part["wall_s"]
    return document


def refuse_other_version(path: Path, run: RunResult) -> None:
    """Raises RunFileError for a run of another version of gpugate, whose rules may differ: it is not decided again."""
    version = run.environment.packages.get("gpugate", "of no known version")
    if version != __version__:
        raise RunFileError(
            f"{path} was decided by gpugate {version} and this is gpugate {__version__}, whose rules may be others: "
            "decide it again with the same version, or measure again"
        )


def parse_time(text: object) -> datetime.datetime:
    """The time at which a run started. Raises FormatError for other text."""
    with suppress(ValueError):
        found = datetime.datetime.fromisoformat(str(text))
        if found.tzinfo is not None:
            return found
    raise FormatError(f"started_at is {text!r}, not an ISO 8601 time with the UTC offset")

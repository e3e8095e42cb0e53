"""The night before a run: the newest earlier one of the same machine beside it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.machine.environment import machine_name
from gpugate.results.run import RunResult
from gpugate.store import run_file
from gpugate.store.night_files import RUN


class NoLastNightError(GpugateError):
    """A run has no earlier night that it can be compared with."""


@dataclass(frozen=True)
class LastNight:
    """An earlier run of the same machine, and the name of its folder."""

    name: str
    run: RunResult


def find_last_night(folder: Path, run: RunResult) -> LastNight:
    """Reads the newest earlier night of the same machine beside `folder`, the folder of the night of `run`.

    Recordings, runs with a fault on purpose, shards and runs that were cut off do not count, nor does a run of a
    format that is too old. Raises NoLastNightError where there is no night, or the newest one cannot be read.
    """
    machine, started = machine_name(run.environment), datetime.datetime.fromisoformat(run.started_at)
    found, unreadable = list[tuple[datetime.datetime, Path]](), list[str]()
    for path in folder.resolve().parent.glob(f"*/{RUN}"):
        if path.parent == folder.resolve():
            continue
        try:
            start = run_file.read_start(path)
            time = datetime.datetime.fromisoformat(start.started_at)
            if machine_name(start.environment) == machine and not start.interrupted and time < started:
                found.append((time, path))
        except (GpugateError, TypeError, ValueError) as error:
            unreadable.append(f"{path.parent.name}: {error}")
    for _, path in sorted(found, reverse=True):
        try:
            earlier = run_file.read(path)
        except GpugateError as error:
            raise NoLastNightError(f"last night cannot be read, so nothing is compared with it: {error}") from error
        if not earlier.recording and earlier.mutated is None and earlier.shard is None:
            return LastNight(path.parent.name, earlier)
    raise NoLastNightError(
        f"no earlier night of {machine} is beside this folder, so nothing is compared with last night"
        + (f" ({len(unreadable)} cannot be read, such as {min(unreadable)})" if unreadable else "")
    )

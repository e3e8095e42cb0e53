"""The cases of stored runs with their durations, from which a night on several GPUs is planned."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gpugate.machine.environment import machine_name
from gpugate.results.fleet_plan import PlannedCase, plan_measured
from gpugate.results.night import Night
from gpugate.results.run import RunResult
from gpugate.store import run_file
from gpugate.store.night_files import RUN, find_runs


@dataclass(frozen=True)
class StoredCases:
    """The cases that one stored run measured, each with its seconds where they are known.

    `unfit` are the ids of cases of which the store has no seconds, since the machine was not well.
    """

    started: datetime.datetime
    machine: str
    cases: tuple[tuple[PlannedCase, float | None], ...]
    unfit: tuple[str, ...] = ()


def take_newest(stored: Sequence[StoredCases]) -> tuple[list[PlannedCase], dict[str, float]]:
    """The cases of all runs, and the seconds of each in its newest run that knows them."""
    cases: dict[str, PlannedCase] = {}
    known_s: dict[str, float] = {}
    for one in sorted(stored, key=lambda one: one.started):
        for case, seconds in one.cases:
            cases[case.case_id] = case
            if seconds is not None:
                known_s[case.case_id] = seconds
    return list(cases.values()), known_s


def read_files(paths: Sequence[Path]) -> list[StoredCases]:
    """Reads runs, nights, and folders of them. Raises RunFileError for a file that cannot be used."""
    found = [path / RUN if (path / RUN).is_file() else path for path in paths]
    return [_of_run(run_file.read(path)) for each in found for path in find_runs(each)]


def _of_run(stored: RunResult) -> StoredCases:
    measured = (case for case in stored.cases.values() if case.measurement is not None)
    cases = tuple((plan_measured(case), case.duration_s or None) for case in measured)
    started = datetime.datetime.fromisoformat(stored.started_at)
    return StoredCases(started, machine_name(stored.environment), cases)


def read_store(url: str) -> list[StoredCases]:
    """Reads all nights of a store. Raises StoreError for one that is absent or cannot be read."""
    from gpugate.store.database import Selection, open_store  # which imports sqlalchemy: run files need none

    with closing(open_store(url, make=False)) as store:
        # Each case has a speedup, also one whose duration an older gpugate did not store.
        nights = store.read_nights(Selection(metrics=("speedup", "duration_s", "host_fed", "ranks")))
    return [_of_night(night) for night in nights]


def _of_night(night: Night) -> StoredCases:
    cases = tuple(
        (PlannedCase(name, name, case.value("host_fed") == 1, int(case.value("ranks") or 1)), case.value("duration_s"))
        for name, case in night.cases.items()
    )
    return StoredCases(night.started, machine_name(night.environment), cases, night.unfit)

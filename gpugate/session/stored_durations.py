"""The cases of stored runs with their durations, from which a night on several GPUs is planned."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpugate.machine.environment import machine_name
from gpugate.results.fleet_plan import PlannedCase
from gpugate.results.night import Night
from gpugate.results.run import RunResult
from gpugate.store import run_file
from gpugate.store.night_files import RUN, find_runs


class StoredCase(NamedTuple):
    """A case of one stored run, with the seconds that it took where they are known; proofs took `proving_s` of them."""

    case: PlannedCase
    duration_s: float | None
    proving_s: float = 0.0


@dataclass(frozen=True)
class StoredRun:
    """The cases of one stored run that were measured.

    `unfit` are the ids of cases of which the store has no seconds, since the machine was not well.
    """

    started: datetime.datetime
    machine: str
    cases: tuple[StoredCase, ...]
    unfit: tuple[str, ...] = ()


def take_newest(stored: Sequence[StoredRun]) -> list[StoredCase]:
    """The cases of all runs, each with the seconds of its newest run that knows them.

    A run that remembered its proofs took none: its seconds are those of a run that shows them, as the last one did.
    """
    newest: dict[str, StoredCase] = {}
    for one in sorted(stored, key=lambda one: one.started):
        for found in one.cases:
            before = newest.get(found.case.case_id, found)
            if found.duration_s is None:
                found = before._replace(case=found.case)
            elif not found.proving_s:
                found = found._replace(duration_s=found.duration_s + before.proving_s, proving_s=before.proving_s)
            newest[found.case.case_id] = found
    return list(newest.values())


def list_durations(cases: Iterable[StoredCase], *, with_proofs: bool = True) -> dict[str, float]:
    """The known seconds of the cases; without the time of their proofs, those of a night that remembers all proofs."""
    known = ((one, one.duration_s) for one in cases)
    return {
        one.case.case_id: taken - (0 if with_proofs else one.proving_s) for one, taken in known if taken is not None
    }


def read_files(paths: Sequence[Path]) -> list[StoredRun]:
    """Reads runs, nights, and folders of them. Raises RunFileError for a file that cannot be used."""
    found = [path / RUN if (path / RUN).is_file() else path for path in paths]
    return [_of_run(run_file.read(path)) for each in found for path in find_runs(each)]


def _of_run(stored: RunResult) -> StoredRun:
    measured = (case for case in stored.cases.values() if case.measurement is not None)
    cases = tuple(StoredCase(case.planned, case.duration_s or None, case.proving_s) for case in measured)
    started = datetime.datetime.fromisoformat(stored.started_at)
    return StoredRun(started, machine_name(stored.environment), cases)


def read_store(url: str) -> list[StoredRun]:
    """Reads all nights of a store. Raises StoreError for one that is absent or cannot be read."""
    from gpugate.store.database import Selection, open_store  # which imports sqlalchemy: run files need none

    with closing(open_store(url, make=False)) as store:
        # Each case has a speedup, also one whose duration an older gpugate did not store.
        nights = store.read_nights(Selection(metrics=("speedup", "duration_s", "proving_s", "needs_host", "ranks")))
    return [_of_night(night) for night in nights]


def _of_night(night: Night) -> StoredRun:
    cases = tuple(
        StoredCase(
            PlannedCase(name, name, case.value("needs_host") == 1, int(case.value("ranks") or 1)),
            case.value("duration_s"),
            case.value("proving_s") or 0.0,
        )
        for name, case in night.cases.items()
    )
    return StoredRun(night.started, machine_name(night.environment), cases, night.unfit)

"""The nights of a folder: one directory each, as `--perf-report` writes it, and of each what a history needs.

A night stays readable when the format of runs grows: only what is needed here is looked at, the samples are not.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gpugate.errors import GpugateError
from gpugate.machine.environment import Environment, machine_name
from gpugate.report.night_files import RUN
from gpugate.results.verdict import Outcome, worst
from gpugate.statistics.intervals import Estimate
from gpugate.store import run_file
from gpugate.store.codec import FormatError, from_json
from gpugate.store.json_file import NextSteps
from gpugate.store.run_file import read_document
from gpugate.units import Milliseconds, Positive

T = TypeVar("T")
NO_NIGHT = "lost+found"  # which every ext4 volume has, for root alone to look into


class HistoryError(GpugateError):
    """A folder contains no nights, or one of them cannot be used."""


_DELETE = "delete the night"
FILE = replace(
    run_file.FILE,
    error=HistoryError,
    next_steps=NextSteps(f"mend its permissions, or {_DELETE}", _DELETE, _DELETE, _DELETE),
)


@dataclass(frozen=True)
class CaseNight:
    """One case as one night measured it; times are medians per step. An anchor is None where nothing was recorded."""

    case_id: str
    workload: str
    speedup: Estimate
    reference_ms: float
    optimized_ms: float
    outcome: Outcome | None  # the worst of its verdicts
    anchor_speedup: float | None


@dataclass(frozen=True)
class Night:
    """One run. `cases` are those whose times say something: measured, and on a machine that was well."""

    name: str  # of its directory
    started: datetime.datetime
    seed: int
    environment: Environment
    source_hashes: Mapping[str, str]  # by workload
    interrupted: bool
    cases: Mapping[str, CaseNight]

    @property
    def machine(self) -> str:
        return machine_name(self.environment)


def read_nights(folder: Path) -> tuple[list[Night], list[str]]:
    """Every night that can be used, the oldest first, and a sentence about each directory that cannot.

    Raises HistoryError where `folder` is none that can be read, or contains no directories.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_dir() and not _is_no_night(path.name))
    except OSError as error:
        problem = f"is no folder that can be read ({error.strerror})"
        raise HistoryError(f"{folder} {problem}: give the one whose directories --perf-report wrote") from error
    if not paths:
        raise HistoryError(f"{folder} contains no nights: give the folder whose directories --perf-report wrote")
    nights: list[Night] = []
    refused: list[str] = []
    for path in paths:
        try:
            nights.append(_check_new(_read_night(path), nights))
        except GpugateError as error:
            refused.append(str(error))
    return sorted(nights, key=lambda night: night.started), refused


def _is_no_night(name: str) -> bool:
    return name.startswith(".") or name == NO_NIGHT


def _check_new(night: Night, earlier: list[Night]) -> Night:
    """A copy would count as a night of its own, which agrees with the other to the last digit."""
    for other in earlier:
        if (other.started, other.seed) == (night.started, night.seed):
            raise HistoryError(f"{night.name} is the same run as {other.name}: delete one of them")
    return night


def _read_night(folder: Path) -> Night:
    """Reads a night. Raises HistoryError for a directory without a run, and for a damaged, newer or mutated run."""
    path = folder / RUN
    with FILE.reading(path):
        if not path.exists():
            raise HistoryError(
                f"{folder} has no {RUN}: give a folder of nights alone, none of them cut off before its first case"
            )
        night, mutated = _night(folder.name, FILE.open(read_document(path))[1])
    if mutated is not None:
        raise HistoryError(
            f"{path} was mutated by {mutated}, so its times do not describe the program: delete the night"
        )
    return night


def _night(name: str, body: Mapping[str, Any]) -> tuple[Night, str | None]:
    wanted = ("environment", "started_at", "seed", "source_hashes", "interrupted", "cases")
    missing = next((field for field in wanted if field not in body), None)
    if missing is not None:
        raise FormatError(f"the document has no field {missing!r}")
    cases = _object(body["cases"], "cases")
    seen = [_read_case(_object(case, f"cases.{case_id}"), f"cases.{case_id}") for case_id, case in cases.items()]
    night = Night(
        name=name,
        started=_time(body["started_at"]),
        seed=from_json(int, body["seed"], "seed"),
        environment=from_json(Environment, body["environment"], "environment"),
        source_hashes=from_json(dict[str, str], body["source_hashes"], "source_hashes"),
        interrupted=from_json(bool, body["interrupted"], "interrupted"),
        cases={one.case_id: one for one in seen if one is not None},
    )
    return night, body.get("mutated")


def _read_case(case: Mapping[str, Any], where: str) -> CaseNight | None:
    """Reads a case; None where it was not timed, or where its machine was not well."""
    if case.get("summary") is None or case.get("environment_problem") is not None:
        return None
    verdicts = case.get("verdicts")
    if not isinstance(verdicts, list):
        raise FormatError(f"{where}.verdicts is not a list")
    outcomes = [_read(Outcome, verdict, f"{where}.verdicts", "outcome") for verdict in verdicts]
    speedup = {name: _read(float, case, where, "summary", "speedup", name) for name in ("median", "low", "high")}
    recorded = case.get("remembered") is not None
    return CaseNight(
        case_id=_read(str, case, where, "case_id"),
        workload=_read(str, case, where, "workload"),
        speedup=from_json(Estimate, speedup, f"{where}.summary.speedup"),
        reference_ms=_read(Milliseconds, case, where, "summary", "reference_ms", "median"),
        optimized_ms=_read(Milliseconds, case, where, "summary", "optimized_ms", "median"),
        outcome=worst(outcomes) if outcomes else None,
        anchor_speedup=_read(Positive, case, where, "remembered", "anchor", "speedup") if recorded else None,
    )


def _read(kind: type[T], data: object, where: str, *path: str) -> T:
    """The value at `path` below `data`; what stands beside it may be of any format. Raises FormatError."""
    for name in path:
        data, where = _object(data, where).get(name), f"{where}.{name}"
    return from_json(kind, data, where)


def _object(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise FormatError(f"{where} is not an object")
    return data


def _time(text: object) -> datetime.datetime:
    try:
        found = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        found = datetime.datetime.min
    if found.tzinfo is None:
        raise FormatError(f"started_at is {text!r}, not an ISO 8601 time with the UTC offset")
    return found

"""Reading a night from the document of a run, of this format or of an older one.

A night stays readable when the format of runs grows: only what is needed here is looked at, the samples are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gpugate.errors import GpugateError
from gpugate.machine.environment import Environment, machine_key
from gpugate.results.fleet_plan import needs_host
from gpugate.results.night import BILL_TIMES, UNKNOWN_PROVENANCE, CaseNight, Metric, Night
from gpugate.results.provenance import Provenance
from gpugate.results.run import RunResult
from gpugate.results.verdict import Outcome, worst
from gpugate.statistics.intervals import Estimate
from gpugate.store import run_file
from gpugate.store.codec import FormatError, from_json, to_json
from gpugate.store.json_file import NextSteps
from gpugate.units import Count, Milliseconds, Positive
from gpugate.workload import CaseId

T = TypeVar("T")
LARGEST = 1e30  # of a number; a larger one, infinite or NaN means nothing


class NightError(GpugateError):
    """A run is no night that the store or a history can use."""


_DELETE = "delete the night"
FILE = replace(
    run_file.FILE,
    error=NightError,
    next_steps=NextSteps(f"mend its permissions, or {_DELETE}", _DELETE, _DELETE, _DELETE),
    oldest_version=1,
)


def read_night(path: Path, name: str) -> Night:
    """Reads the night of a run file. Raises NightError for a run that is absent, damaged, newer or mutated."""
    with FILE.reading(path):
        if not path.exists():
            raise NightError(
                f"{path.parent} has no {path.name}: give a folder of nights alone, none of them cut off before its "
                "first case"
            )
        body = FILE.open(run_file.read_document(path))[1]
        night = _night(name, body)
    if body.get("mutated") is not None:
        raise NightError(
            f"{path} was mutated by {body['mutated']}, so its times do not describe the program: delete the night"
        )
    return night


def night_of(run: RunResult, name: str = "") -> Night:
    """The night of a run that this process measured. Raises FormatError for a number that JSON cannot carry."""
    return _night(name or run.started_at, to_json(run))


def _night(name: str, body: Mapping[str, Any]) -> Night:
    wanted = ("environment", "started_at", "seed", "source_hashes", "interrupted", "cases")
    missing = next((field for field in wanted if field not in body), None)
    if missing is not None:
        raise FormatError(f"the document has no field {missing!r}")
    cases = from_json(dict[CaseId, dict[str, Any]], body["cases"], "cases")
    seen = [_read_case(case, f"cases.{case_id}") for case_id, case in cases.items()]
    environment = from_json(Environment, body["environment"], "environment")
    memory = body.get("memory_bytes")
    stored = body.get("provenance")
    return Night(
        name=name,
        started=run_file.parse_time(body["started_at"]),
        seed=from_json(int, body["seed"], "seed"),
        machine=machine_key(environment, None if memory is None else from_json(Count, memory, "memory_bytes")),
        environment=environment,
        source_hashes=from_json(dict[str, str], body["source_hashes"], "source_hashes"),
        provenance=UNKNOWN_PROVENANCE if stored is None else from_json(Provenance, stored, "provenance"),
        interrupted=from_json(bool, body["interrupted"], "interrupted"),
        cases={one.case_id: one for one in seen if one is not None},
        unfit=tuple(case_id for case_id, case in cases.items() if _is_timed(case) and not _was_fit(case)),
    )


def _read_case(case: Mapping[str, Any], where: str) -> CaseNight | None:
    """Reads a case; None where it was not timed, or where its machine was not well."""
    if not (_is_timed(case) and _was_fit(case)):
        return None
    verdicts = case.get("verdicts")
    if not isinstance(verdicts, list):
        raise FormatError(f"{where}.verdicts is not a list")
    outcomes = [_read(Outcome, verdict, f"{where}.verdicts", "outcome") for verdict in verdicts]
    return CaseNight(
        case_id=_read(CaseId, case, where, "case_id"),
        outcome=worst(outcomes) if outcomes else None,
        metrics=dict(_metrics(case, where)),
    )


def _is_timed(case: Mapping[str, Any]) -> bool:
    return case.get("summary") is not None


def _was_fit(case: Mapping[str, Any]) -> bool:
    return case.get("environment_problem") is None


def _metrics(case: Mapping[str, Any], where: str) -> Iterator[tuple[str, Metric]]:
    bounds = ("median", "low", "high")
    speedup = {name: _read(float, case, where, "summary", "speedup", name) for name in bounds}
    from_json(Estimate, speedup, f"{where}.summary.speedup")  # refuses a median outside its interval
    yield "speedup", Metric(*speedup.values())
    for side in ("optimized_ms", "reference_ms"):
        median = _read(Milliseconds, case, where, "summary", side, "median")
        yield side, Metric(median, *(_find(case, "summary", side, bound) for bound in bounds[1:]))
    if case.get("remembered") is not None:
        yield "anchor_speedup", Metric(_read(Positive, case, where, "remembered", "anchor", "speedup"))
    optional = {
        "recorded_speedup": _find(case, "remembered", "current", "speedup"),
        "speedup_tolerance": next(
            (
                found
                for verdict in case["verdicts"]
                if (found := _find(verdict, "numbers", "speedup_tolerance")) is not None
            ),
            None,
        ),
        "peak_bytes": _find(case, "measurement", "optimized_cost", "peak_bytes"),
        "start_up_s": _start_up_s(case),
        "duration_s": _sum_over_processes(case, "wall_s"),
        "proving_s": _sum_over_processes(case, "spent_s", "proving"),
        "needs_host": 1.0 if _needs_host(case) else None,
        **{
            name: _find(case, "measurement", "optimized_counters", name)
            for name in ("kernels", "kernel_launches", "graph_launches", "whole_run_speedup", "ranks", *BILL_TIMES)
        },
    }
    yield from ((name, Metric(value)) for name, value in optional.items() if value is not None)


def _start_up_s(case: Mapping[str, Any]) -> float | None:
    parts = [_find(case, "measurement", "optimized_cost", name) for name in ("build_s", "first_step_s")]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _sum_over_processes(case: Mapping[str, Any], *path: str) -> float | None:
    """The seconds at `path` in all measurements of the case: see `CaseResult.duration_s` and `proving_s`."""
    code = case.get("recorded_code")
    duets = code.get("processes") if isinstance(code, dict) else None
    found = [_find(one, "measurement", *path) for one in (case, *_entries(case.get("attempts")))]
    found += [_find(duet, "measured", str(case.get("case_id")), *path) for duet in _entries(duets)]
    return sum(one for one in found if one is not None) or None


def _entries(data: object) -> list[Any]:
    return data if isinstance(data, list) else []


def _needs_host(case: Mapping[str, Any]) -> bool:
    """See `CaseResult.needs_host`."""
    measurement = case.get("measurement")
    on_host_clock = isinstance(measurement, dict) and measurement.get("timer") == "host clock"
    sides = "reference_counters", "optimized_counters"
    copies = [_find(measurement, side, "copy_fraction") for side in sides]
    return needs_host(str(case.get("case_id")).endswith("/cpu"), on_host_clock, copies)


def _find(data: object, *path: str) -> float | None:
    """The number at `path` below `data`; None where an older format has none there."""
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    if isinstance(data, bool) or not isinstance(data, int | float) or not abs(data) <= LARGEST:
        return None
    return float(data)


def _read(kind: type[T], data: object, where: str, *path: str) -> T:
    """The value at `path` below `data`; what stands beside it may be of any format. Raises FormatError."""
    for name in path:
        data, where = _object(data, where).get(name), f"{where}.{name}"
    return from_json(kind, data, where)


def _object(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise FormatError(f"{where} is not an object")
    return data

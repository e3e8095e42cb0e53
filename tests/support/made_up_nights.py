"""Invented nights of an H200, in folders as `--perf-report` writes them."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpugate.report.night import write_night
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from gpugate.results.summary import summarize
from tests.support.stored_runs import MACHINE, case, measured

FIRST = datetime.datetime(2030, 1, 1, 3, 0, tzinfo=datetime.timezone.utc)
HASHES = {"tiny": "0123456789abcdef"}


def speedups(nights: int, level: float = 3.0, seed: int = 1) -> list[float]:
    """Around one level, at a standard deviation of 0.2 %."""
    draw = random.Random(seed)  # noqa: S311  # the same in every run of the tests
    return [level * (1 + draw.gauss(0, 0.002)) for _ in range(nights)]


def timed(name: str, speedup: float, **changed: object) -> CaseResult:
    """`tiny/<name>/cuda` with its summary, at about 10 ms per optimized step."""
    found = case(name, speedup, **changed)
    found.measurement = measured(found.case_id, speedup, optimized_ms=10.0)
    found.summary = summarize(found.measurement)
    return found


def night(folder: Path, number: int, cases: Sequence[CaseResult], **changed: object) -> Path:
    """The directory of the night that is `number` days after the first."""
    started = (FIRST + datetime.timedelta(days=number)).isoformat()
    by_id = {one.case_id: one for one in cases}
    run = RunResult(MACHINE, started, seed=number, gate=True, cases=by_id, source_hashes=HASHES)
    path = folder / f"night-{number:02d}"
    path.mkdir(parents=True)
    write_night(path, replace(run, **changed))
    return path


def nights(folder: Path, series: Mapping[str, Sequence[float]]) -> list[Path]:
    """Writes a night for every value of the series, which is of one case."""
    columns = zip(*series.values(), strict=True)
    return [
        night(folder, number, [timed(name, value) for name, value in zip(series, values, strict=True)])
        for number, values in enumerate(columns)
    ]

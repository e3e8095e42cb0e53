"""Invented runs of an H200: a case for every outcome as `--perf-json` stores it, and nights as `--perf-report` does."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpugate import __version__
from gpugate.measurement.record import (
    OTHERS,
    Difference,
    Measurement,
    Pair,
    SideCost,
    StepProfile,
    TimedBuild,
    Yardstick,
)
from gpugate.results.bill import Bill, Bills
from gpugate.results.case import CaseResult, Confirmation, Promise, Remembered
from gpugate.results.run import RunResult
from gpugate.results.summary import History, summarize
from gpugate.session.decide_again import decide_again
from gpugate.store import run_file
from gpugate.store.night_files import RUN
from gpugate.workload import Contract, Limit, Size, Tolerance
from tests.conftest import H200

MACHINE = replace(H200, packages={**H200.packages, "gpugate": __version__})
STARTED = "2030-01-02T03:04:05+00:00"
COST = SideCost(0.1, 0.1)
COUNTED = {"kernel_launches": 1.0, "graph_launches": 0.0, "kernels": 57.0}
OF_FIVE = History(3.0, 0.0002, 30.0, 10.0, 0.001, 5)
RECORDED = Remembered(OF_FIVE, "exact", optimized_counters=COUNTED)
OF_FEW = replace(RECORDED, current=replace(RECORDED.current, processes=2))
PROMISE = Promise(1.5, Tolerance(1e-3, 1e-2), Contract(limits=(Limit("kernels", at_most=58),)))
FIRST = datetime.datetime(2030, 1, 1, 3, 0, tzinfo=datetime.timezone.utc)
HASHES = {"tiny": "0123456789abcdef"}
NO_TENSORRT = "needs the package tensorrt: pip install tensorrt"


def timed_build(
    reference_ms: float | Sequence[float], optimized_ms: float | Sequence[float], pairs: int = 4, **changed: Any
) -> TimedBuild:
    """A build whose pairs took these times; a single time is that of all `pairs`."""
    reference, optimized = ([ms] * pairs if isinstance(ms, (int, float)) else ms for ms in (reference_ms, optimized_ms))
    times = enumerate(zip(reference, optimized, strict=True))
    taken = (Pair(*both_ms, reference_first=number % 2 == 0) for number, both_ms in times)
    return replace(TimedBuild(tuple(taken)), **changed)


def measurement(*builds: TimedBuild, case_id: str = "net/fast/cuda", **changed: Any) -> Measurement:
    return replace(Measurement(case_id, builds, "narrow", (), COST, COST), **changed)


def measured(
    case_id: str, speedup: float, spread: float = 1e-4, optimized_ms: float | None = None, **changed: Any
) -> Measurement:
    """A measurement of four builds, with as many digits as a clock gives: the reference takes about 30 ms per step,
    unless `optimized_ms` has the optimized side's time."""
    step_ms = optimized_ms or 30.0 / speedup
    draw = random.Random(f"{case_id} {speedup}")  # noqa: S311  # the same in every run of the tests

    def build() -> TimedBuild:
        pairs = [[step_ms * side * (1 + draw.uniform(-spread, spread)) for side in (speedup, 1.0)] for _ in range(4)]
        reference_ms, optimized_ms = zip(*pairs, strict=True)
        return timed_build(reference_ms, optimized_ms)

    facts = {"differences": (Difference(1.23e-6, 4.56e-6, None, "fresh inputs"),), "optimized_counters": COUNTED}
    return measurement(*(build() for _ in range(4)), case_id=case_id, **{**facts, **changed})


def case(name: str, speedup: float | None = 3.0, kind: str = "cuda", **changed: Any) -> CaseResult:
    """`tiny/<name>/<kind>`, measured at `speedup` and recorded at 3.00x; None measures nothing."""
    case_id = f"tiny/{name}/{kind}"
    result = CaseResult(case_id, "tiny", name, "baseline", Size(1, 1, 1), promise=PROMISE, remembered=RECORDED)
    if speedup is not None:
        result.measurement = measured(case_id, speedup)
    return replace(result, **changed)


def every_outcome() -> list[CaseResult]:
    """Each named after what is decided of it; in `confirmed` and `outvoted` fresh processes were asked, and `outvoted`
    ran on four GPUs."""
    slower = measured("tiny/confirmed/cuda", 2.81)
    first = measured("tiny/outvoted/cuda", 2.8, wall_s=60.0, optimized_counters={**COUNTED, "ranks": 4.0})
    nan = (Difference(float("inf"), float("inf"), None, "timed steps", "the output holds NaN"),)
    return [
        case("pass"),
        case("improved", measurement=measured("tiny/improved/cuda", 3.2, optimized_ms=9.4)),
        case("regressed", 2.8),
        case("asked-again", measurement=measured("tiny/asked-again/cuda", 3.0, attempts=2)),
        case(
            "confirmed", 2.8, attempts=[Confirmation(slower), Confirmation(None, "a fresh process ended with status 3")]
        ),
        case(
            "outvoted",
            measurement=first,
            attempts=[Confirmation(measured("a", 3.01, wall_s=30.0)), Confirmation(measured("b", 3.0))],
        ),
        case("inconclusive", measurement=measured("tiny/inconclusive/cuda", 2.97, spread=0.05)),
        case("no-baseline", remembered=OF_FEW),
        case("undecided", remembered=None, measurement=measured("tiny/undecided/cuda", 3.0, spread=0.4)),
        case("env-invalid", 2.5, environment_problem="the machine gave 1 instead of 2"),
        case("wrong", measurement=measured("tiny/wrong/cuda", 3.0, differences=nan)),
        case("unmeasured", measurement=measured("tiny/unmeasured/cuda", 3.0, instances=(), differences=nan)),
        case("not-engaged", measurement=measured("tiny/not-engaged/cuda", 3.0, not_engaged="it fell back")),
        case("skipped", None, skipped=NO_TENSORRT, lacking=("tensorrt",), why="shown beside a time alone"),
        case("failed", None, error="tiny/failed/cuda: failed failed while being built: ValueError: no"),
    ]


def crowded() -> list[CaseResult]:
    """More than a screen has lines for, by their kinds: failed, improved, new, slow, and undecided with two steps."""
    kernels = {"gemm": (1.0, 1.0), "copy": (1.0, 0.1), "relu": (1.0, 0.2), OTHERS: (1.0, 9.0)}
    then = (Bills(Bill({}, {}), Bill({}, {"gemm": 0.5, "old": 0.75, "tiny": 0.01})),) * 5
    counters, ceilings = {**COUNTED, "kernel_ms": 10.3}, {"device_copy_gb_per_s": 4300.0, "matmul_bf16_tflops": 788.0}
    billed = measured("tiny/billed/cuda", 3.0, optimized_counters=counters, ceilings=ceilings)
    billed = replace(billed, optimized_profile=StepProfile(kernels), optimized_cost=SideCost(0.5, 0.25))
    record = replace(RECORDED, current=replace(RECORDED.current, bills=then))
    size = Size(64, flops=1e12, bytes=2e10, whole_run_items=6400)
    return [
        *(case(f"failed-{number}", None, error="broken") for number in range(7)),
        *(case(f"improved-{number}", measurement=measured("a", 3.2, optimized_ms=9.4)) for number in range(5)),
        *(case(f"new-{number}", remembered=None) for number in range(2)),
        case("undecided", remembered=None, measurement=measured("a", 2.0, spread=0.4)),
        case("slowest", 0.1, remembered=None),
        case("noisy", None, "cpu", remembered=None, measurement=measured("k", 1.8, 0.4, stopped_because="noise")),
        case("billed", measurement=billed, remembered=record, size=size),
    ]


def stored(path: Path, *cases: CaseResult, **changed: Any) -> RunResult:
    """The run of these cases as it comes back from the file, which holds what was decided of its stored digits."""
    by_id: Mapping[str, CaseResult] = {one.case_id: one for one in cases}
    run = RunResult(MACHINE, STARTED, seed=7, cases=dict(by_id), wall_s=12.5)
    run.yardsticks = [Yardstick({"matmul_bf16_tflops": 788.0})]
    run.source_hashes = {one.workload: "fedcba9876543210" for one in cases}
    run = replace(run, **changed)
    run_file.write(path, run)
    run = decide_again(run_file.read(path))
    for one in run.cases.values() if run.gate else ():
        one.held = one.held or ("equivalence",)
    run_file.write(path, run)
    return run_file.read(path)


def edit(path: Path, field: str, value: object) -> None:
    """Replaces the value at `field`, a path of names and numbers with spaces between them; `...` removes the field."""
    document = at = json.loads(path.read_text(encoding="utf-8"))
    *steps, last = (int(word) if word.isdecimal() else word for word in field.split())
    for step in steps:
        at = at[step]
    at[last] = value
    if value is ...:
        del at[last]
    path.write_text(json.dumps(document), encoding="utf-8")


def speedups(nights: int, level: float = 3.0, seed: int = 1) -> list[float]:
    """Around one level, at a standard deviation of 0.2 %."""
    draw = random.Random(seed)  # noqa: S311  # the same in every run of the tests
    return [level * (1 + draw.gauss(0, 0.002)) for _ in range(nights)]


def timed(name: str, speedup: float, **changed: Any) -> CaseResult:
    """`tiny/<name>/cuda` with its summary, at about 10 ms per optimized step."""
    found = case(name, speedup, **changed)
    found.measurement = measured(found.case_id, speedup, optimized_ms=10.0)
    found.summary = summarize(found.measurement)
    return found


def night(folder: Path, number: int, cases: Sequence[CaseResult], **changed: Any) -> Path:
    """The directory of the night that is `number` days after the first."""
    started = (FIRST + datetime.timedelta(days=number)).isoformat()
    by_id = {one.case_id: one for one in cases}
    run = RunResult(MACHINE, started, seed=number, gate=True, cases=by_id, source_hashes=HASHES)
    path = folder / f"night-{number:02d}"
    path.mkdir(parents=True)
    run_file.write(path / RUN, replace(run, **changed))
    return path


def nights(folder: Path, series: Mapping[str, Sequence[float]]) -> list[Path]:
    """Writes a night for every value of the series, which is of one case."""
    columns = zip(*series.values(), strict=True)
    return [
        night(folder, number, [timed(name, value) for name, value in zip(series, values, strict=True)])
        for number, values in enumerate(columns)
    ]

"""What bounds each side, one line a side."""

from __future__ import annotations

from collections.abc import Iterator

from gpugate.bottleneck import bottleneck
from gpugate.result import CaseResult, RunResult


def bounds(run: RunResult) -> list[str]:
    """`two-layer-net/all/cuda: launch-bound: ...`, each reference once; empty where nothing was counted."""
    return list(dict.fromkeys(line for case in run.cases.values() for line in _of_case(case)))


def _of_case(case: CaseResult) -> Iterator[str]:
    if case.measurement is None or case.summary is None:
        return
    found, summary = case.measurement, case.summary
    sides = (
        (case.compared_with, found.reference_counters, summary.reference_ms),
        (case.optimization, found.optimized_counters, summary.optimized_ms),
    )
    for name, counters, time in sides:
        words = bottleneck(counters, time.median)
        if words is not None:
            yield f"{case.workload}/{name}/{case.device_kind}: {words}"

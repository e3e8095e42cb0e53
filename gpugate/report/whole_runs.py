"""What a run from its start to its end takes, where start-up is a part of it: one line a case."""

from __future__ import annotations

from gpugate import units
from gpugate.result import CaseResult, RunResult


def whole_runs(run: RunResult) -> list[str]:
    """`net/fast: 600 items in 1.6 s instead of 19.8 s, 12.4x; start-up 0.9 s and 0.4 s`; empty where no run has an end.

    A whole run is start-up, which includes a first step, and then every other item at the median rate. Both start-ups
    are those of the first build that is timed: outputs were compared and proofs shown before it, so what a process or a
    disk keeps is warm, and importing packages is in neither.
    """
    return [line for case in run.cases.values() if (line := _line(case)) is not None]


def _line(case: CaseResult) -> str | None:
    items = case.size.whole_run_items
    if items is None or case.measurement is None or case.summary is None:
        return None
    steps, found = items / case.size.items - 1, case.measurement
    starts_s = found.optimized_cost.compile_s, found.reference_cost.compile_s
    medians_ms = case.summary.optimized_ms.median, case.summary.reference_ms.median
    ours_s, theirs_s = (start_s + steps * ms / 1e3 for start_s, ms in zip(starts_s, medians_ms, strict=True))
    return (
        f"{case.workload}/{case.optimization}: {items:,} items in {ours_s:.1f} s instead of {theirs_s:.1f} s, "
        f"{units.ratio(theirs_s / ours_s)}; start-up {starts_s[0]:.1f} s and {starts_s[1]:.1f} s"
    )

"""The time of a run from its start to its end, with its start-up: one line a case."""

from __future__ import annotations

from gpugate import units
from gpugate.measurement.whole_run import whole_run
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult


def whole_runs(run: RunResult) -> list[str]:
    """`net/fast: 600 items in 1.6 s instead of 19.8 s, 12.4x; start-up 0.9 s and 0.4 s`; empty where no run has an end.

    See `gpugate.measurement.whole_run` for what counts.
    """
    return [line for case in run.cases.values() if (line := _line(case)) is not None]


def _line(case: CaseResult) -> str | None:
    found = case.measurement
    whole = whole_run(case.size, found) if found is not None else None
    if found is None or whole is None:
        return None
    return (
        f"{case.workload}/{case.optimization}: {case.size.whole_run_items:,} items in {whole.optimized_s:.1f} s "
        f"instead of {whole.reference_s:.1f} s, {units.ratio(whole.speedup)}; start-up "
        f"{found.optimized_cost.compile_s:.1f} s and {found.reference_cost.compile_s:.1f} s"
    )

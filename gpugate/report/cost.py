"""The cost of a night: the time of its cases in all processes, and the length of the night on other numbers of GPUs."""

from __future__ import annotations

from gpugate import units
from gpugate.results.case import CaseResult
from gpugate.results.fleet_plan import FLEETS, group_cases, plan_host, plan_measured
from gpugate.results.run import RunResult

LONGEST = 10  # cases by name


def sort_by_cost(run: RunResult) -> list[CaseResult]:
    """The measured cases, the most expensive first."""
    return sorted((case for case in run.cases.values() if case.measurements), key=lambda case: -case.duration_s)


def describe_cost(run: RunResult) -> list[str]:
    """`cost: 27.4 GPU-minutes, 12 % of them for confirmations; planned on ...`; empty without a measured case."""
    cases, on_gpu = sort_by_cost(run), run.environment.device_kind == "cuda"
    whole_s = confirming_s = 0.0
    for case in cases:
        gpus = case.gpus if on_gpu else 1
        whole_s += gpus * case.duration_s
        confirming_s += gpus * sum(one.measurement.wall_s for one in case.attempts if one.measurement is not None)
    if not whole_s:
        return []
    unit = "GPU-minutes" if on_gpu else "minutes"
    words = f"cost: {whole_s / 60:.1f} {unit}, {units.percent(confirming_s / whole_s)} of them for confirmations"
    return [f"{words}; {_describe_fleets(cases)}" if on_gpu else words]


def _describe_fleets(cases: list[CaseResult]) -> str:
    groups = group_cases(map(plan_measured, cases), {case.case_id: case.duration_s for case in cases})
    nights = [units.duration(plan_host(groups, gpus).night_s) for gpus in FLEETS]
    return f"planned on {', '.join(map(str, FLEETS))} GPUs of a host: {', '.join(nights)}"


def list_longest(run: RunResult) -> list[str]:
    """`video/decode/nvdec/cuda 52 s`, the LONGEST most expensive cases."""
    return [f"{case.case_id} {units.duration(case.duration_s)}" for case in sort_by_cost(run)[:LONGEST]]

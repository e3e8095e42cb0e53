"""The worth and the cost of a run: its sharpness, its duets with the recorded code, remembered proofs, and its time."""

from __future__ import annotations

import math
import statistics
from collections import Counter

from gpugate import units
from gpugate.judging.evidence import duet_of
from gpugate.results.case import CaseResult
from gpugate.results.fleet_plan import FLEETS, group_cases, plan_host
from gpugate.results.reason import ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.verdict import Outcome
from gpugate.statistics.policy import SHARP
from gpugate.units import date_of, number_of, percent

LONGEST = 10  # cases by name


def sharpness(run: RunResult) -> str | None:
    """The share of cases that would catch a slowdown; None where no case has a record.

    A case catches a slowdown by its wall time or by a duet, whichever shows the smaller one.
    """
    recorded = [case for case in run.cases.values() if case.remembered is not None and case.verdicts]
    if not recorded:
        return None
    found = [_detectable(case) for case in recorded]
    sharp, middle = sum(one <= SHARP for one in found), statistics.median(found)
    median = f"{100 * middle:.2g} %" if math.isfinite(middle) else "none"
    return (
        f"sharpness: {sharp} of {number_of(len(found), 'case')} would catch a slowdown of {percent(SHARP)} by the wall "
        f"time or a duet (median detectable {median})"
    )


def _detectable(case: CaseResult) -> float:
    """The smallest slowdown that the case would catch, a share; infinite where there is none."""
    duet = duet_of(case.recorded_code) if case.recorded_code else None
    known = (case.detectable_slowdown, duet.detectable if duet else None)
    return min((one for one in known if one is not None), default=math.inf)


def is_not_gated(case: CaseResult) -> bool:
    """True where neither the wall time nor a duet decided about the time of a case: its record misses a slowdown of
    SHARP, and its duet stayed undecided, or its wall time did."""
    wall = next((one for one in case.verdicts if one.check == "throughput"), None)
    if wall is None or case.remembered is None:
        return False
    undecided = any(reason.code is ReasonCode.CODE_UNDECIDED for reason in wall.reasons)
    return wall.outcome is Outcome.INCONCLUSIVE or (undecided and wall.good and _detectable(case) > SHARP)


def code_comparisons(run: RunResult) -> str | None:
    """The outcomes of the duets with the recorded code, and the first reason for which there are none; None where no
    case was to be compared with it."""
    codes = [case.recorded_code for case in run.cases.values() if case.recorded_code is not None]
    duets = [duet for code in codes if (duet := duet_of(code)) is not None]
    unchanged = sum(code.unchanged for code in codes)
    problems = [code.problem.partition("\n")[0] for code in codes if code.problem is not None]
    counts = Counter(duet.outcome.value for duet in duets)
    outcomes = ", ".join(f"{count} {word}" for word, count in counts.items())
    parts = [f"{number_of(len(duets), 'case')} in turns ({outcomes})"] if duets else []
    parts += [f"{unchanged} unchanged"] if unchanged else []
    such_as = "such as: " if len(set(problems)) > 1 else ""
    parts += [f"{len(problems)} not compared ({such_as}{problems[0]})"] if problems else []
    return f"recorded code: {', '.join(parts)}" if parts else None


def remembered_proofs(run: RunResult) -> str | None:
    """The number of proofs by the date of the run that showed them; None where this run showed all of its proofs."""
    proofs = [proof for case in run.cases.values() if case.measurement for proof in case.measurement.proofs]
    before = Counter(date_of(proof.proved_at) for proof in proofs if proof.proved_at is not None)
    if not before:
        return None
    words = [f"{count} proved on {date}" for date, count in sorted(before.items())]
    now = len(proofs) - before.total()
    return f"proofs: {', '.join([*words, *([f'{now} in this run'] if now else [])])}"


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
    words = f"cost: {whole_s / 60:.1f} {unit}, {percent(confirming_s / whole_s)} of them for confirmations"
    return [f"{words}; {_describe_fleets(cases)}" if on_gpu else words]


def _describe_fleets(cases: list[CaseResult]) -> str:
    groups = group_cases([case.planned for case in cases], {case.case_id: case.duration_s for case in cases})
    nights = [units.duration(plan_host(groups, gpus).night_s) for gpus in FLEETS]
    return f"planned on {', '.join(map(str, FLEETS))} GPUs of a host: {', '.join(nights)}"


def list_longest(run: RunResult) -> list[str]:
    """`video/decode/nvdec/cuda 52 s`, the LONGEST most expensive cases."""
    return [f"{case.case_id} {units.duration(case.duration_s)}" for case in sort_by_cost(run)[:LONGEST]]

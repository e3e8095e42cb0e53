"""The worth of a run in sentences, about its optimizations and about its verdicts. Pure.

An optimization gains by its interval, and is bounded by a device, a bus or the host. Verdicts are worth their
sharpness, their duets with the recorded code and their proofs; they cost the time of their processes.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter

from gpugate import units
from gpugate.explaining.cause import bottleneck
from gpugate.judging.evidence import WIDEST_HALF_WIDTH, duet_of
from gpugate.measurement.derived import whole_run
from gpugate.report.next_step import advised_step, describe_next_step
from gpugate.results.case import CaseResult, decider
from gpugate.results.reason import ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.series import sweeps
from gpugate.results.verdict import NextStep, Outcome
from gpugate.statistics.policy import SHARP
from gpugate.units import date_of, number_of, percent

MOST_NAMED = 3  # optimizations by name
NO_EVIDENCE = (Outcome.ENV_INVALID, Outcome.WRONG, Outcome.NOT_ENGAGED)  # such times are no evidence of a gain


def describe_gains(run: RunResult) -> list[str]:
    """The findings of the run about its optimizations in one or two sentences; none without a time that is evidence."""
    found = {
        f"{case.workload}/{case.optimization}": one.summary.speedup
        for case in run.cases.values()
        if (one := decider(case)) and case.worst not in NO_EVIDENCE and not _has_no_result(case)
    }
    if not found:
        return []
    gains = {name: speedup for name, speedup in found.items() if speedup.low > 1}
    losses = [name for name, speedup in found.items() if speedup.high < 1]
    verb = "gains" if 1 in (len(gains), len(found)) else "gain"
    words = f"{len(gains)} of {units.number_of(len(found), 'optimization')} {verb} here"
    if gains:
        best = max(gains, key=lambda name: gains[name].low)
        most = ", most of all " if len(gains) > 1 else ": "
        words += f"{most}{best}, {units.ratio(gains[best].median)}"
    if losses:
        words += f"; slower than the reference: {len(losses)}, {units.list_names(losses, MOST_NAMED)}"
    knees = [
        f"{sweep.workload} is best with {sweep.parameter} {sweep.knee}" for sweep in sweeps(run.cases) if sweep.knee
    ]
    return [words + _describe_undecided(run), *knees]


def _has_no_result(case: CaseResult) -> bool:
    """True for times that are impossible, or beside a slowed reference."""
    return any(one.next_step in (NextStep.CHECK_SIZE, NextStep.KEEP_APART) for one in case.verdicts)


def _describe_undecided(run: RunResult) -> str:
    """The end of the sentence; with the command that measures longer, where that is the step of all of them."""
    found = [one for case in run.cases.values() for one in case.verdicts if one.outcome is Outcome.UNDECIDED]
    if not found:
        return ""
    verb, which = ("is", "its interval is") if len(found) == 1 else ("are", "their intervals are")
    words = f"; {len(found)} {verb} UNDECIDED: {which} wider than +-{units.percent(WIDEST_HALF_WIDTH)}"
    if any(advised_step(verdict, run) is not NextStep.MEASURE_LONGER for verdict in found):
        return words
    return f"{words}, and `{describe_next_step(found[0], run, [one.case_id for one in found])}` measures longer"


def whole_runs(run: RunResult) -> list[str]:
    """The time of a run from its start to its end, with its start-up, one line a case; empty where no run has an end.

    `net/fast: 600 items in 1.6 s instead of 19.8 s, 12.4x; start-up 0.9 s and 0.4 s`; see
    `gpugate.measurement.derived.whole_run`.
    """
    return [line for case in run.cases.values() if (line := _whole_run(case)) is not None]


def _whole_run(case: CaseResult) -> str | None:
    found = case.measurement
    whole = whole_run(case.size, found) if found is not None else None
    if found is None or whole is None:
        return None
    return (
        f"{case.workload}/{case.optimization}: {case.size.whole_run_items:,} items in {whole.optimized_s:.1f} s "
        f"instead of {whole.reference_s:.1f} s, {units.ratio(whole.speedup)}; start-up "
        f"{found.optimized_cost.compile_s:.1f} s and {found.reference_cost.compile_s:.1f} s"
    )


def bounds(run: RunResult) -> list[str]:
    """`two-layer-net/all: launch-bound: ...`, each side once; empty where nothing was counted.

    Several cases may share a side: the line is that of the first case whose counters are known.
    """
    lines: dict[str, str] = {}
    for case in run.cases.values():
        if case.measurement is None or case.summary is None:
            continue
        found, summary = case.measurement, case.summary
        for name, counters, time in (
            (case.compared_with, found.reference_counters, summary.reference_ms),
            (case.optimization, found.optimized_counters, summary.optimized_ms),
        ):
            bound = bottleneck(counters, time.median)
            if bound is not None:
                lines.setdefault(f"{case.workload}/{name}", bound)
    return [f"{side}: {words}" for side, words in lines.items()]


def reasons(run: RunResult) -> list[str]:
    """The author's reason for the speedup of every measured case that is no rung; a ladder shows its own reasons.

    Cases of one workload with one reason, such as the points of a sweep, share a line.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for case in run.cases.values():
        if case.summary is not None and case.why and case.rung is None:
            found.setdefault((case.workload, case.why), []).append(case.optimization)
    return [f"{workload}/{', '.join(names)}: {why}" for (workload, why), names in found.items()]


def sharpness(run: RunResult) -> str | None:
    """The share of cases that would catch a slowdown; None where no case has a record.

    A case catches a slowdown by its wall time or by a duet, whichever shows the smaller one.
    """
    recorded = [case for case in run.cases.values() if case.remembered is not None and case.verdicts]
    if not recorded:
        return None
    found = [_detectable(case) for case in recorded]
    sharp, middle = sum(one <= SHARP for one in found), statistics.median(found)
    median = percent(middle) if math.isfinite(middle) else "none"
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
    """`cost: 27.4 GPU-minutes, 12 % of them for confirmations`; empty without a measured case."""
    cases, on_gpu = sort_by_cost(run), run.environment.device_kind == "cuda"
    whole_s = confirming_s = 0.0
    for case in cases:
        gpus = case.gpus if on_gpu else 1
        whole_s += gpus * case.duration_s
        confirming_s += gpus * sum(one.measurement.wall_s for one in case.attempts if one.measurement is not None)
    if not whole_s:
        return []
    unit = "GPU-minutes" if on_gpu else "minutes"
    return [f"cost: {whole_s / 60:.1f} {unit}, {percent(confirming_s / whole_s)} of them for confirmations"]

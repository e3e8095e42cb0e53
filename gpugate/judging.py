"""Judging: pure functions from a summary, a promise and what was true before to a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gpugate import units
from gpugate.intervals import Estimate
from gpugate.measurement.record import Counters, Difference, Measurement
from gpugate.next_steps import next_step, record_step, rerun
from gpugate.summary import History, Summary
from gpugate.verdict import Outcome, Verdict, worst
from gpugate.workload import Tolerance

RATIO_FLOOR = 0.01  # no tolerance is tighter: one kernel moved 7 % across days at 0.02 % within a run
TIME_FLOOR = 0.05  # absolute time is gated loosely
TIME_FLOOR_OTHER_SOFTWARE = 0.25  # the same device under another driver or torch
CV_FACTOR = 4.0
MIN_PROCESSES = 5  # fresh processes that tell how much runs differ
UNKNOWN_CV_FLOOR = 0.05  # tolerance of a baseline of fewer processes
# The same words for every case, so that a report says them once; the numbers stand in its table.
NOTHING_RECORDED = "nothing is recorded for this machine yet"
SAME_SPEED = 0.03  # two identical sides may differ by 1 % for their whole life


@dataclass(frozen=True)
class Remembered:
    """What a baseline file says of one case, and how far its machine is this one.

    A changed source of the workload is one of the `differences` and leaves `match` exact: it is what a gate is for.
    `optimized_counters` is the largest value of each counter over the recorded processes.
    """

    current: History
    anchor: History
    match: Literal["exact", "same device"]
    differences: tuple[str, ...] = ()
    optimized_counters: Counters = field(default_factory=dict)
    yardsticks: Mapping[str, float] = field(default_factory=dict)


class _Judgement(NamedTuple):
    """What one bound says: `bound` is the bound in words."""

    outcome: Outcome
    bound: str
    by_anchor: bool = False


def tolerance(cv: float | None, processes: int, floor: float) -> float:
    """max(floor, 4 x between-run cv); a history too short to know its cv is trusted to 5 % only."""
    known = cv is not None and processes >= MIN_PROCESSES
    return max(floor, CV_FACTOR * (cv or 0.0), 0.0 if known else UNKNOWN_CV_FLOOR)


def against_minimum(speedup: Estimate, minimum: float) -> Outcome:
    """PASS when the lower bound reaches the minimum, REGRESSED when the upper bound does not."""
    if speedup.low >= minimum:
        return Outcome.PASS
    return Outcome.REGRESSED if speedup.high < minimum else Outcome.INCONCLUSIVE


def against_reference(value: Estimate, reference: float, allowed: float) -> Outcome:
    """For values of which more is better: the whole interval must lie on one side of the tolerated band's edge."""
    if value.high < reference * (1 - allowed):
        return Outcome.REGRESSED
    if value.low > reference * (1 + allowed):
        return Outcome.IMPROVED
    return Outcome.PASS if value.low >= reference * (1 - allowed) else Outcome.INCONCLUSIVE


def judge_equivalence(measurement: Measurement, allowed: Tolerance) -> Verdict:
    """Every compared output must be within the tolerance; NaN never is."""
    case_id = measurement.case_id
    if not measurement.differences:
        return Verdict("equivalence", case_id, reason="no output was compared")
    worst_difference = max(measurement.differences, key=lambda d: (d.problem is not None, d.relative_l2))
    numbers = {
        "relative_l2": _finite(worst_difference.relative_l2),
        "max_error": _finite(max(d.max_error for d in measurement.differences)),
        "compared_outputs": float(len(measurement.differences)),
    }
    problems = [problem for d in measurement.differences if (problem := _output_problem(d, allowed))]
    if problems:
        return Verdict("equivalence", case_id, Outcome.WRONG, problems[0], rerun(case_id), numbers)
    reason = (
        f"relative L2 error {worst_difference.relative_l2:.1e} of at most {allowed.relative_l2:.1e} "
        f"over {len(measurement.differences)} outputs"
    )
    return Verdict("equivalence", case_id, Outcome.PASS, reason, numbers=numbers)


def _output_problem(found: Difference, allowed: Tolerance) -> str | None:
    if found.problem is not None:
        return f"on {found.when} {found.problem}"
    if not found.relative_l2 <= allowed.relative_l2:
        return f"on {found.when} relative L2 error {found.relative_l2:.2e} exceeds {allowed.relative_l2:.1e}"
    if not found.max_error <= allowed.max_error:
        return f"on {found.when} largest error {found.max_error:.2e} exceeds {allowed.max_error:.1e}"
    if found.top1_agreement is not None and found.top1_agreement < allowed.top1_agreement:
        return f"on {found.when} top-1 agreement {found.top1_agreement:.3f} is below {allowed.top1_agreement}"
    return None


def judge_speedup(
    measurement: Measurement, summary: Summary | None, minimum: float | None, remembered: Remembered | None
) -> Verdict:
    """The promised minimum, the recorded speedup and the fixed anchor, each by the bounds of the interval.

    `minimum` is None where nothing is promised for this class of device.
    """
    case_id = measurement.case_id
    if summary is None:
        return _not_timed("speedup", measurement)
    speedup = summary.speedup
    judgements = _against_record(speedup, remembered)
    if minimum is not None:
        judgements.insert(0, _Judgement(against_minimum(speedup, minimum), f"the promised {units.ratio(minimum)}"))
    outcome = _inert(measurement, speedup) or worst([judgement.outcome for judgement in judgements])
    reason = f"{_speedup_reason(outcome, summary, judgements, remembered)} ({_evidence(measurement, summary)})"
    if outcome is Outcome.NO_BASELINE and remembered is None:
        reason = NOTHING_RECORDED
    return Verdict(
        "speedup",
        case_id,
        outcome,
        reason,
        _speedup_step(case_id, outcome, judgements),
        {
            "speedup": speedup.median,
            "speedup_low": speedup.low,
            "speedup_high": speedup.high,
            "min_speedup": minimum,
            "recorded_speedup": remembered.current.speedup if remembered else None,
        },
    )


def _against_record(speedup: Estimate, remembered: Remembered | None) -> list[_Judgement]:
    """Against the current record and against the anchor, which a recorded improvement has passed for good."""
    if remembered is None:
        return [_Judgement(Outcome.NO_BASELINE, NOTHING_RECORDED)]
    judgements = [
        _against_history(speedup, "recorded", remembered.current),
        _against_history(speedup, "anchored", remembered.anchor)._replace(by_anchor=True),
    ]
    if judgements[1].outcome is Outcome.IMPROVED:
        judgements[1] = judgements[1]._replace(outcome=Outcome.PASS)
    if remembered.current.processes < MIN_PROCESSES:
        known = f"a baseline of {remembered.current.processes} processes, where a gate needs {MIN_PROCESSES}"
        judgements.append(_Judgement(Outcome.NO_BASELINE, known))
    return judgements


def _against_history(speedup: Estimate, name: str, then: History) -> _Judgement:
    allowed = tolerance(then.speedup_cv, then.processes, RATIO_FLOOR)
    bound = f"the {name} {units.ratio(then.speedup)} -{units.percent(allowed)}"
    return _Judgement(against_reference(speedup, then.speedup, allowed), bound)


def _inert(measurement: Measurement, speedup: Estimate) -> Outcome | None:
    same_speed = speedup.low <= 1 + SAME_SPEED and speedup.high >= 1 - SAME_SPEED
    return Outcome.NOT_ENGAGED if measurement.inert and same_speed else None


def _speedup_reason(
    outcome: Outcome, summary: Summary, judgements: list[_Judgement], remembered: Remembered | None
) -> str:
    found = f"{units.ratio(summary.speedup.median)} ({units.interval(summary.speedup.low, summary.speedup.high)})"
    if outcome is Outcome.NOT_ENGAGED:
        return f"{found} with the same kernels and bitwise the same outputs as the reference: it did nothing"
    relation = {
        Outcome.PASS: "holds",
        Outcome.IMPROVED: "beats",
        Outcome.REGRESSED: "is below",
        Outcome.NO_BASELINE: "has",
    }.get(outcome, "is not clearly on either side of")
    bounds = " and ".join(judgement.bound for judgement in judgements if judgement.outcome is outcome)
    text = f"{found} {relation} {bounds}"
    return text + _where_it_moved(summary, remembered) if outcome is not Outcome.PASS else text


def _evidence(measurement: Measurement, summary: Summary) -> str:
    instances = f"{summary.instances} fresh build{'s' if summary.instances > 1 else ''}"
    discarded = f", {summary.discarded} discarded as throttled" if summary.discarded else ""
    stopped = {
        "narrow": "until the interval was narrow",
        "noise": "until the noise stopped changing",
        "budget": "until the budget was spent",
    }.get(measurement.stopped_because, measurement.stopped_because)
    return f"{summary.pairs} pairs over {instances}{discarded}, {stopped}"


def _speedup_step(case_id: str, outcome: Outcome, judgements: list[_Judgement]) -> str:
    """What to run next; where only the anchor objects, how to accept what the record already has."""
    blamed = [judgement for judgement in judgements if judgement.outcome is outcome]
    if outcome is Outcome.REGRESSED and all(judgement.by_anchor for judgement in blamed):
        return f"{record_step(case_id)} --perf-new-anchor, if this is meant to be the new normal"
    return next_step(outcome, case_id)


def _where_it_moved(summary: Summary, remembered: Remembered | None) -> str:
    if remembered is None or remembered.match != "exact":
        return ""
    then = remembered.current
    return (
        f"; optimized {units.milliseconds(then.optimized_ms)} -> {units.milliseconds(summary.optimized_ms.median)}, "
        f"reference {units.milliseconds(then.reference_ms)} -> {units.milliseconds(summary.reference_ms.median)}"
    )


def judge_throughput(measurement: Measurement, summary: Summary | None, remembered: Remembered | None) -> Verdict:
    """Absolute time of the optimized side against the recorded one: loosely, and more so under other software."""
    case_id = measurement.case_id
    if summary is None:
        return _not_timed("throughput", measurement)
    now, reference = summary.optimized_ms, summary.reference_ms
    numbers: dict[str, float | str | None] = {"optimized_ms": now.median, "reference_ms": reference.median}
    if remembered is None:
        missing = Outcome.NO_BASELINE
        return Verdict("throughput", case_id, missing, NOTHING_RECORDED, next_step(missing, case_id), numbers)
    then = remembered.current
    floor = TIME_FLOOR if remembered.match == "exact" else TIME_FLOOR_OTHER_SOFTWARE
    allowed = tolerance(then.optimized_ms_cv, then.processes, floor)
    speed = Estimate(*(then.optimized_ms / ms for ms in (now.median, now.high, now.low)))
    outcome = against_reference(speed, 1.0, allowed)
    reason = (
        f"{units.milliseconds(now.median)} per step against {units.milliseconds(then.optimized_ms)} recorded, "
        f"tolerance {units.percent(allowed)}"
    )
    if outcome is not Outcome.PASS:
        reason += f"; reference {units.milliseconds(then.reference_ms)} -> {units.milliseconds(reference.median)}"
    if outcome is Outcome.REGRESSED and _moved_alike(then, summary):
        outcome = Outcome.ENV_INVALID
        reason += ", which is alike: the machine changed, or what both sides share"
    if remembered.differences:
        widened = "widened, " if remembered.match != "exact" else ""
        reason += f" ({widened}since {'; '.join(remembered.differences)})"
    numbers["recorded_ms"] = then.optimized_ms
    return Verdict("throughput", case_id, outcome, reason, next_step(outcome, case_id), numbers)


def _moved_alike(then: History, summary: Summary) -> bool:
    """The reference slowed by at least half as much as the optimized side."""
    ours = summary.optimized_ms.median / then.optimized_ms - 1
    theirs = summary.reference_ms.median / then.reference_ms - 1
    return theirs >= ours / 2


def _not_timed(check: Literal["speedup", "throughput"], measurement: Measurement) -> Verdict:
    problem = next((d.problem for d in measurement.differences if d.problem), None)
    if problem is not None:
        return Verdict(check, measurement.case_id, Outcome.WRONG, f"not timed: {problem}", rerun(measurement.case_id))
    return Verdict(check, measurement.case_id, reason="no pair of blocks was measured", next_step="raise --perf-budget")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

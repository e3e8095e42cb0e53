"""The verdicts about the speedup and the throughput, from summaries, a promise and a record. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from gpugate.judging.asked_tolerance import smallest_tolerance
from gpugate.judging.next_step import next_step
from gpugate.judging.processes import is_disputed, vote
from gpugate.judging.unrecorded import find_wide_interval, judge_unrecorded
from gpugate.measurement.record import Measurement
from gpugate.results.case import Remembered
from gpugate.results.moved_side import Times, mostly_the_reference
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.summary import History, Summary
from gpugate.results.verdict import NextStep, Outcome, Verdict, worst
from gpugate.statistics.intervals import Estimate
from gpugate.statistics.policy import DECIDING_PROCESSES, MIN_PROCESSES
from gpugate.statistics.tolerance import (
    BOUNDS_NOTHING,
    TIME_FLOOR_OTHER_SOFTWARE,
    detectable_slowdown,
    false_alarm_chance,
    time_tolerance,
    tolerance,
)

MOVED = "moved_side"  # among a verdict's numbers: `reference` where the optimized side did not move
SAME_SPEED = 0.03  # two identical sides may differ by 1 % for their whole life

_BELOW: Mapping[str, ReasonCode] = {
    "promised": ReasonCode.SPEEDUP_BELOW_PROMISE,
    "recorded": ReasonCode.SPEEDUP_BELOW_RECORD,
    "anchored": ReasonCode.SPEEDUP_BELOW_ANCHOR,
}
_CODES: Mapping[Outcome, ReasonCode] = {
    Outcome.PASS: ReasonCode.BOUND_HELD,
    Outcome.IMPROVED: ReasonCode.FASTER_THAN_RECORD,
    Outcome.INCONCLUSIVE: ReasonCode.UNDECIDED,
}


class _Judgement(NamedTuple):
    """The outcome at one bound, and its reason. `no_gain`: a speedup rose above the bound because the reference is
    slower."""

    outcome: Outcome
    reason: Reason
    no_gain: bool = False

    @property
    def bound(self) -> Fact | None:
        return self.reason.facts.get("bound")


def _code(outcomes: Sequence[Outcome], below: ReasonCode) -> ReasonCode:
    """The code of the common outcome of several processes; `below` is the code of REGRESSED."""
    return ReasonCode.PROCESSES_DISAGREE if is_disputed(outcomes) else _CODES.get(vote(outcomes), below)


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


def judged_summaries(undisturbed: Sequence[Summary], disturbed: Sequence[Summary]) -> list[Summary]:
    """The processes that are judged: the undisturbed ones, or all where every one was disturbed.

    From DECIDING_PROCESSES on medians decide, as `votes` has it, also where only one process of them is undisturbed: it
    is then its median that is judged.
    """
    if len(undisturbed) == 1 and len(disturbed) >= DECIDING_PROCESSES - 1:
        (one,) = undisturbed
        speedup, optimized_ms = (Estimate(*[value.median] * 3) for value in (one.speedup, one.optimized_ms))
        return [replace(one, speedup=speedup, optimized_ms=optimized_ms)]
    return list(undisturbed or disturbed)


def votes(values: Sequence[Estimate], reference: float, allowed: float) -> list[Outcome]:
    """The outcome of each process. A single process is judged by its interval. Several processes are judged by their
    medians: an interval inside a process does not contain the differences between processes, and the tolerance does."""
    if len(values) == 1:
        return [against_reference(values[0], reference, allowed)]
    return [against_reference(Estimate(*[value.median] * 3), reference, allowed) for value in values]


def votes_on_minimum(values: Sequence[Estimate], minimum: float) -> list[Outcome]:
    """The outcome of each process at a promise: of one process by its interval, of several by their medians, as for a
    record."""
    if len(values) == 1:
        return [against_minimum(values[0], minimum)]
    return [Outcome.PASS if value.median >= minimum else Outcome.REGRESSED for value in values]


def judge_speedup(
    measurement: Measurement,
    summaries: Sequence[Summary],
    minimum: float | None,
    remembered: Remembered | None,
    asked_tolerance: float | None = None,
    mode: Mode = Mode.GATE,
) -> Verdict:
    """The promised minimum, the recorded speedup and the fixed anchor.

    A record that bounds nothing is no evidence. Without a promise there is then no baseline.
    `summaries` are of this process, which took `measurement`, and of the fresh ones that were asked to confirm it.
    `minimum` is None where nothing is promised for this class of device. `asked_tolerance` is the user's, a share.
    """
    if not summaries:
        return _not_timed("speedup", measurement)
    speedups = [summary.speedup for summary in summaries]
    speedup = speedups[0]
    judgements, too_varied = _against_record(summaries, remembered, mode, asked_tolerance)
    if minimum is not None:
        allowed = _promise_tolerance(minimum, remembered)
        kept = votes_on_minimum(speedups, minimum * (1 - allowed))
        promised = Reason(
            _code(kept, _BELOW["promised"]),
            {"bound": "promised", "value": minimum, **({"allowed": allowed} if allowed else {})},
        )
        judgements.insert(0, _Judgement(vote(kept), promised))
    elif too_varied:
        judgements.append(_Judgement(Outcome.NO_BASELINE, too_varied[0]))
    outcome = _inert(measurement, speedup) or worst([judgement.outcome for judgement in judgements])
    blamed = [judgement for judgement in judgements if judgement.outcome is outcome]
    moved = _reference_moved(outcome, summaries, judgements, remembered)
    too_wide = find_wide_interval(speedup, remembered, mode)
    if too_wide is not None and outcome in (Outcome.PASS, Outcome.INCONCLUSIVE):
        outcome, reasons = Outcome.UNDECIDED, [too_wide, *(judgement.reason for judgement in judgements)]
        reasons.append(_pairs(measurement, summaries[0]))
    elif outcome is Outcome.NO_BASELINE and remembered is None:
        reasons = [judgement.reason for judgement in blamed]
    else:
        reasons = [
            *([judgement.reason for judgement in blamed] or [Reason(ReasonCode.DID_NOTHING)]),
            *(Reason(ReasonCode.FRESH_PROCESS, _of_speedup(one)) for one in speedups[1:]),
            *_sides_moved(outcome, summaries, remembered, moved),
            *(too_varied if minimum is not None else ()),
            _pairs(measurement, summaries[0]),
        ]
    return Verdict(
        "speedup",
        measurement.case_id,
        outcome,
        tuple(reasons),
        _speedup_step(outcome, blamed, moved),
        {
            **_of_speedup(speedup),
            "min_speedup": minimum,
            "recorded_speedup": remembered.current.speedup if remembered else None,
            **_applied_tolerance(remembered, asked_tolerance),
            **_expected_alarms(remembered, minimum),
            **({MOVED: "reference"} if moved else {}),
        },
    )


def _of_speedup(found: Estimate) -> dict[str, float]:
    return {"speedup": found.median, "speedup_low": found.low, "speedup_high": found.high}


def _applied_tolerance(remembered: Remembered | None, asked_tolerance: float | None) -> dict[str, float | None]:
    """The tolerance against the current record and the slowdown that it detects, None where it detects none; beside a
    tolerance that was asked for, the smallest one that the records allow."""
    if remembered is None:
        return {}
    then = remembered.current
    allowed = asked_tolerance or then.tolerance(remembered.checks)
    smallest = {} if asked_tolerance is None else {"smallest_tolerance": smallest_tolerance(remembered)}
    if then.processes < MIN_PROCESSES:
        return {"speedup_tolerance": allowed, **smallest}
    detectable = then.detectable_slowdown(allowed)
    return {
        "speedup_tolerance": allowed,
        **smallest,
        "detectable_slowdown": detectable if math.isfinite(detectable) else None,
    }


def _promise_tolerance(minimum: float, remembered: Remembered | None) -> float:
    """The share by which a speedup may fall short of its promise: a fall that the record allows is chance.

    0 where the record allows no such fall, where it is itself below the promise, and where it bounds nothing, so that
    the promise alone does.
    """
    if remembered is None or remembered.current.speedup < minimum:
        return 0.0
    then, allowed = remembered.current, remembered.current.tolerance(remembered.checks)
    return max(0.0, 1 - then.speedup * (1 - allowed) / minimum) if allowed < BOUNDS_NOTHING else 0.0


def _expected_alarms(remembered: Remembered | None, minimum: float | None) -> dict[str, float]:
    """The false alarms that this check makes a night: of a record, or of a promise where the record bounds nothing."""
    if remembered is None:
        return {}
    then = remembered.current
    if then.tolerance(remembered.checks) < BOUNDS_NOTHING:
        return {"false_alarms": false_alarm_chance(remembered.checks)}
    return {"false_alarms": 0.0 if minimum is None else then.shortfall_chance(minimum)}


def _against_record(
    summaries: Sequence[Summary], remembered: Remembered | None, mode: Mode, asked_tolerance: float | None
) -> tuple[list[_Judgement], list[Reason]]:
    """Against the current record and against the anchor, which a recorded improvement has passed for good.

    And at most one reason: which of them vary by so much that no speedup would fall short of them.
    """
    if remembered is None:
        return [_Judgement(*judge_unrecorded(mode))], []
    judgements, too_varied = list[_Judgement](), dict[str, Fact]()
    for bound, then in (("recorded", remembered.current), ("anchored", remembered.anchor)):
        allowed = asked_tolerance or then.tolerance(remembered.checks)
        if allowed >= BOUNDS_NOTHING:
            too_varied[bound] = then.speedup_cv or 0.0
        else:
            judgements.append(_against_history(summaries, bound, then, allowed))
    if remembered.current.processes < MIN_PROCESSES:
        count = {"processes": remembered.current.processes, "needed": MIN_PROCESSES}
        judgements.append(_Judgement(Outcome.NO_BASELINE, Reason(ReasonCode.TOO_FEW_PROCESSES, count)))
    return judgements, [Reason(ReasonCode.RECORD_VARIES, too_varied)] if too_varied else []


def _against_history(summaries: Sequence[Summary], bound: str, then: History, allowed: float) -> _Judgement:
    by_ratio = votes([one.speedup for one in summaries], then.speedup, allowed)
    by_side = [
        _discount_slower_reference(outcome, one, then, allowed)
        for outcome, one in zip(by_ratio, summaries, strict=True)
    ]
    outcome, no_gain = vote(by_side), by_side != by_ratio
    code = _code(by_side, _BELOW[bound])
    if bound == "anchored" and outcome is Outcome.IMPROVED:
        outcome, code = Outcome.PASS, ReasonCode.BOUND_HELD
    if no_gain and code is ReasonCode.UNDECIDED:
        code = ReasonCode.GAIN_OF_A_SLOWER_REFERENCE
    return _Judgement(outcome, Reason(code, {"bound": bound, "value": then.speedup, "allowed": allowed}), no_gain)


def _discount_slower_reference(outcome: Outcome, summary: Summary, then: History, allowed: float) -> Outcome:
    """No improvement where the speedup rose because the reference is slower. The optimized side then answers for itself
    by its time: as long as recorded it is a PASS, and a longer time may be the machine's or the optimization's."""
    if outcome is not Outcome.IMPROVED or not mostly_the_reference(_recorded_times(then), _medians(summary)):
        return outcome
    kept = summary.optimized_ms.median <= then.optimized_ms * (1 + allowed)
    return Outcome.PASS if kept else Outcome.INCONCLUSIVE


def _recorded_times(then: History) -> Times:
    return Times(then.reference_ms, then.optimized_ms)


def _medians(summary: Summary) -> Times:
    return Times(summary.reference_ms.median, summary.optimized_ms.median)


def _inert(measurement: Measurement, speedup: Estimate) -> Outcome | None:
    same_speed = speedup.low <= 1 + SAME_SPEED and speedup.high >= 1 - SAME_SPEED
    return Outcome.NOT_ENGAGED if measurement.inert and same_speed else None


def _sides_moved(
    outcome: Outcome, summaries: Sequence[Summary], remembered: Remembered | None, moved: bool
) -> list[Reason]:
    """The times of both sides, recorded and in the process that decided, where the speedup left its record."""
    if outcome is Outcome.NOT_ENGAGED or remembered is None:
        return []
    if not moved and (outcome is Outcome.PASS or remembered.match != "exact"):
        return []
    then, now = _recorded_times(remembered.current), _medians(middle_by_speedup(summaries))
    facts = {
        "reference_then_ms": then.reference_ms,
        "optimized_then_ms": then.optimized_ms,
        "reference_now_ms": now.reference_ms,
        "optimized_now_ms": now.optimized_ms,
        "processes": len(summaries),
    }
    return [Reason(ReasonCode.SIDES_MOVED, facts)]


def _middle_one(summaries: Sequence[Summary], value: Callable[[Summary], float]) -> Summary:
    """The process that decides; of two the one of the lower value."""
    return sorted(summaries, key=value)[(len(summaries) - 1) // 2]


def _pairs(measurement: Measurement, summary: Summary) -> Reason:
    facts: dict[str, Fact] = {
        "pairs": summary.pairs,
        "builds": summary.instances,
        "attempts": measurement.attempts,
        "discarded": summary.discarded,
        "stopped": measurement.stopped_because,
    }
    return Reason(ReasonCode.PAIRS, facts)


def _speedup_step(outcome: Outcome, blamed: Sequence[_Judgement], moved: bool) -> NextStep | None:
    """The next step: it accepts the new times where only the anchor is missed or the reference moved."""
    if outcome is Outcome.REGRESSED and all(judgement.bound == "anchored" for judgement in blamed):
        return NextStep.RECORD_NEW_ANCHOR
    if moved and outcome is not Outcome.PASS and not any(judgement.bound == "promised" for judgement in blamed):
        return NextStep.RECORD_NEW_REFERENCE
    return next_step(outcome)


def _reference_moved(
    outcome: Outcome, summaries: Sequence[Summary], judgements: list[_Judgement], remembered: Remembered | None
) -> bool:
    """True where the deciding process's speedup left the recorded one because its reference moved."""
    if remembered is None or outcome not in (Outcome.PASS, Outcome.REGRESSED, Outcome.INCONCLUSIVE):
        return False
    if not mostly_the_reference(_recorded_times(remembered.current), _medians(middle_by_speedup(summaries))):
        return False
    return outcome is Outcome.REGRESSED or any(judgement.no_gain for judgement in judgements)


def middle_by_speedup(summaries: Sequence[Summary]) -> Summary:
    """The process that decides about the speedup: the median one, and of two the lower one."""
    return _middle_one(summaries, lambda one: one.speedup.median)


def judge_throughput(
    measurement: Measurement, summaries: Sequence[Summary], remembered: Remembered | None, mode: Mode = Mode.GATE
) -> Verdict:
    """Absolute time of the optimized side against the recorded one: loosely, and more so under other software."""
    case_id = measurement.case_id
    if not summaries:
        return _not_timed("throughput", measurement)
    now, reference = summaries[0].optimized_ms, summaries[0].reference_ms
    numbers: dict[str, float | str | None] = {"optimized_ms": now.median, "reference_ms": reference.median}
    if remembered is None:
        missing, unknown = judge_unrecorded(mode)
        return Verdict("throughput", case_id, missing, (unknown,), next_step(missing), numbers)
    then = remembered.current
    of_time = then.optimized_ms_cv, then.processes
    if remembered.match == "exact":
        allowed = time_tolerance(*of_time, then.sittings, remembered.checks)
    else:
        allowed = tolerance(*of_time, TIME_FLOOR_OTHER_SOFTWARE, remembered.checks)
    detectable = detectable_slowdown(*of_time, then.sittings, allowed) if then.processes >= MIN_PROCESSES else math.inf
    numbers |= {
        "recorded_ms": then.optimized_ms,
        "time_tolerance": allowed,
        "detectable_by_time": detectable if math.isfinite(detectable) else None,
        "false_alarms": false_alarm_chance(remembered.checks),
    }
    by_process = votes([_speed(then.optimized_ms, one.optimized_ms) for one in summaries], 1.0, allowed)
    outcome, decisive = vote(by_process), _middle_one(summaries, lambda one: one.optimized_ms.median)
    recorded: dict[str, Fact] = {"bound": "recorded", "value": then.optimized_ms, "allowed": allowed}
    reasons = [Reason(_code(by_process, ReasonCode.SLOWER_THAN_RECORD), recorded)]
    reasons += [Reason(ReasonCode.FRESH_PROCESS, {"optimized_ms": one.optimized_ms.median}) for one in summaries[1:]]
    if allowed >= BOUNDS_NOTHING:
        reasons.append(Reason(ReasonCode.BOUNDS_NOTHING))
    if outcome is not Outcome.PASS:
        facts = {"then": then.reference_ms, "now": decisive.reference_ms.median}
        reasons.append(Reason(ReasonCode.REFERENCE_TIME, facts))
    if outcome is Outcome.REGRESSED and _sides_slowed_alike(then, decisive):
        outcome = Outcome.ENV_INVALID
        reasons.insert(0, Reason(ReasonCode.MACHINE_CHANGED))
    if remembered.differences:
        code = ReasonCode.RECORD_DIFFERS if remembered.match == "exact" else ReasonCode.TOLERANCE_WIDENED
        reasons.append(Reason(code, {"differences": ", ".join(remembered.differences)}))
    return Verdict("throughput", case_id, outcome, tuple(reasons), next_step(outcome), numbers)


def _speed(then_ms: float, now: Estimate) -> Estimate:
    """Speed relative to the recorded one; of a time's bounds the upper one is the lower bound of the speed."""
    return Estimate(*(then_ms / ms for ms in (now.median, now.high, now.low)))


def _sides_slowed_alike(then: History, summary: Summary) -> bool:
    """The reference slowed by at least half as much as the optimized side."""
    ours = summary.optimized_ms.median / then.optimized_ms - 1
    theirs = summary.reference_ms.median / then.reference_ms - 1
    return theirs >= ours / 2


def _not_timed(check: Literal["speedup", "throughput"], measurement: Measurement) -> Verdict:
    problem = next((d.problem for d in measurement.differences if d.problem), None)
    if problem is not None:
        reasons = (Reason(ReasonCode.NOT_TIMED, {"problem": problem}),)
        return Verdict(check, measurement.case_id, Outcome.WRONG, reasons, NextStep.REPEAT)
    none = (Reason(ReasonCode.NO_PAIRS),)
    return Verdict(check, measurement.case_id, reasons=none, next_step=NextStep.RAISE_BUDGET)

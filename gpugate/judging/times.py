"""The verdicts about the speedup and the throughput, from summaries, a promise and a record. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from gpugate import units
from gpugate.judging.next_step import next_step
from gpugate.judging.processes import decider, disputed, elsewhere, predicate, voted
from gpugate.measurement.record import Measurement
from gpugate.results.case import Remembered
from gpugate.results.moved_side import Times, in_words, mostly_the_reference
from gpugate.results.summary import History, Summary
from gpugate.results.verdict import NextStep, Outcome, Verdict, worst
from gpugate.statistics.intervals import Estimate
from gpugate.statistics.policy import MIN_PROCESSES
from gpugate.statistics.tolerance import (
    BOUNDS_NOTHING,
    TIME_FLOOR,
    TIME_FLOOR_OTHER_SOFTWARE,
    tolerance,
)

# The same words for every case, so that a report says them once; the numbers stand in its table.
NOTHING_RECORDED = "nothing is recorded for this machine yet"
MOVED = "moved_side"  # among a verdict's numbers: `reference` where the optimized side did not move
SAME_SPEED = 0.03  # two identical sides may differ by 1 % for their whole life


class _Judgement(NamedTuple):
    """The outcome at one bound. `bound` is the bound in words; `disputed`: processes disagree about it; `promised` and
    `by_anchor`: the kind of the bound; `no_gain`: a speedup rose above it because the reference is slower."""

    outcome: Outcome
    bound: str
    by_anchor: bool = False
    disputed: bool = False
    promised: bool = False
    no_gain: bool = False


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


def over_processes(values: Sequence[Estimate], reference: float, allowed: float) -> Outcome:
    """The common outcome of all processes, each with one vote."""
    return voted(votes(values, reference, allowed))


def votes(values: Sequence[Estimate], reference: float, allowed: float) -> list[Outcome]:
    """The outcome of each process. A single process is judged by its interval. Several processes are judged by their
    medians: an interval inside a process does not contain the differences between processes, and the tolerance does."""
    if len(values) == 1:
        return [against_reference(values[0], reference, allowed)]
    return [against_reference(Estimate(*[value.median] * 3), reference, allowed) for value in values]


def judge_speedup(
    measurement: Measurement,
    summaries: Sequence[Summary],
    minimum: float | None,
    remembered: Remembered | None,
    asked_tolerance: float | None = None,
) -> Verdict:
    """The promised minimum, the recorded speedup and the fixed anchor.

    A record that bounds nothing is no evidence. Without a promise there is then no baseline.
    `summaries` are of this process, which took `measurement`, and of the fresh ones that were asked to confirm it.
    `minimum` is None where nothing is promised for this class of device. `asked_tolerance` is the user's, a share.
    """
    case_id = measurement.case_id
    if not summaries:
        return _not_timed("speedup", measurement)
    summary, speedups = summaries[0], [summary.speedup for summary in summaries]
    speedup = summary.speedup
    judgements, too_varied = _against_record(summaries, remembered, asked_tolerance)
    if minimum is not None:
        kept = [against_minimum(one, minimum) for one in speedups]
        bound = f"the promised {units.ratio(minimum)}"
        judgements.insert(0, _Judgement(voted(kept), bound, disputed=disputed(kept), promised=True))
    elif too_varied:
        judgements.append(_Judgement(Outcome.NO_BASELINE, f"{too_varied}: record more, or on a quieter machine"))
    outcome = _inert(measurement, speedup) or worst([judgement.outcome for judgement in judgements])
    moved = _reference_moved(outcome, summaries, judgements, remembered)
    reason = _speedup_reason(outcome, summaries, judgements, remembered, moved)
    reason += f"; it has {too_varied}" if too_varied and minimum is not None else ""
    reason += f" ({_evidence(measurement, summaries)})"
    if outcome is Outcome.NO_BASELINE and remembered is None:
        reason = NOTHING_RECORDED
    return Verdict(
        "speedup",
        case_id,
        outcome,
        reason,
        _speedup_step(outcome, judgements, moved),
        {
            "speedup": speedup.median,
            "speedup_low": speedup.low,
            "speedup_high": speedup.high,
            "min_speedup": minimum,
            "recorded_speedup": remembered.current.speedup if remembered else None,
            **_applied_tolerance(remembered, asked_tolerance),
            **({MOVED: "reference"} if moved else {}),
        },
    )


def _applied_tolerance(remembered: Remembered | None, asked_tolerance: float | None) -> dict[str, float | None]:
    """The tolerance against the current record, and the slowdown that it detects: None where it detects none."""
    if remembered is None:
        return {}
    then = remembered.current
    allowed = asked_tolerance or then.tolerance(remembered.checks)
    if then.processes < MIN_PROCESSES:
        return {"speedup_tolerance": allowed}
    detectable = then.detectable_slowdown(allowed)
    return {
        "speedup_tolerance": allowed,
        "detectable_slowdown": detectable if math.isfinite(detectable) else None,
    }


def _against_record(
    summaries: Sequence[Summary], remembered: Remembered | None, asked_tolerance: float | None
) -> tuple[list[_Judgement], str]:
    """Against the current record and against the anchor, which a recorded improvement has passed for good.

    And in words, which of them vary by so much that no speedup would fall short of them.
    """
    if remembered is None:
        return [_Judgement(Outcome.NO_BASELINE, NOTHING_RECORDED)], ""
    judgements, empty = list[_Judgement](), dict[str, float]()
    for name, then in (("recorded", remembered.current), ("anchored", remembered.anchor)):
        allowed = asked_tolerance or then.tolerance(remembered.checks)
        if allowed >= BOUNDS_NOTHING:
            empty[name] = then.speedup_cv or 0.0
        else:
            judgements.append(_against_history(summaries, name, then, allowed))
    if remembered.current.processes < MIN_PROCESSES:
        known = f"a baseline of {remembered.current.processes} processes, where a gate needs {MIN_PROCESSES}"
        judgements.append(_Judgement(Outcome.NO_BASELINE, known))
    return judgements, _too_varied(empty)


def _against_history(summaries: Sequence[Summary], name: str, then: History, allowed: float) -> _Judgement:
    bound = f"the {name} {units.ratio(then.speedup)} -{units.percent(allowed)}"
    by_ratio = votes([one.speedup for one in summaries], then.speedup, allowed)
    said = [_gained(vote, one, then, allowed) for vote, one in zip(by_ratio, summaries, strict=True)]
    by_anchor = name == "anchored"
    outcome = voted(said)
    if by_anchor and outcome is Outcome.IMPROVED:
        outcome = Outcome.PASS
    return _Judgement(outcome, bound, by_anchor, disputed(said), no_gain=said != by_ratio)


def _gained(outcome: Outcome, summary: Summary, then: History, allowed: float) -> Outcome:
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


def _too_varied(cv_by_name: Mapping[str, float]) -> str:
    """`a recorded and an anchored speedup whose processes vary by 13 and 17 %, too much to bound anything`."""
    if not cv_by_name:
        return ""
    names = " and ".join(f"{'an' if name[0] == 'a' else 'a'} {name}" for name in cv_by_name)
    varied = " and ".join(dict.fromkeys(f"{100 * cv:.0f}" for cv in cv_by_name.values()))
    return f"{names} speedup whose processes vary by {varied} %, too much to bound anything"


def _inert(measurement: Measurement, speedup: Estimate) -> Outcome | None:
    same_speed = speedup.low <= 1 + SAME_SPEED and speedup.high >= 1 - SAME_SPEED
    return Outcome.NOT_ENGAGED if measurement.inert and same_speed else None


def _speedup_reason(
    outcome: Outcome,
    summaries: Sequence[Summary],
    judgements: list[_Judgement],
    remembered: Remembered | None,
    moved: bool,
) -> str:
    speedup = summaries[0].speedup
    found = _with_interval(speedup)
    # Where it is open, their intervals are why.
    others = [one.speedup for one in summaries[1:]]
    told = [_with_interval(one) if outcome is Outcome.INCONCLUSIVE else units.ratio(one.median) for one in others]
    found += elsewhere(told)
    if outcome is Outcome.NOT_ENGAGED:
        return f"{found} with the same kernels and bitwise the same outputs as the reference: it did nothing"
    text = f"{found}{':' if len(summaries) > 1 else ''} {_said(outcome, judgements, len(summaries))}"
    if remembered is None or not (moved or (outcome is not Outcome.PASS and remembered.match == "exact")):
        return text
    where = in_words(_recorded_times(remembered.current), _medians(middle_by_speedup(summaries)))
    return f"{text}; {'in the process that decided ' if len(summaries) > 1 else ''}{where}"


def _with_interval(speedup: Estimate) -> str:
    return f"{units.ratio(speedup.median)} ({units.interval(speedup.low, speedup.high)})"


def _said(outcome: Outcome, judgements: Sequence[_Judgement], processes: int) -> str:
    """`holds the promised 2.00x and the recorded 3.00x -1 %`: who says `outcome` of which bounds."""
    bounds: dict[str, list[str]] = {}
    for judgement in judgements:
        if judgement.outcome is outcome is Outcome.NO_BASELINE:
            bounds.setdefault("has" if processes == 1 else "there is", []).append(judgement.bound)
        elif judgement.outcome is outcome:
            bounds.setdefault(predicate(outcome, processes, judgement.disputed), []).append(judgement.bound)
    return " and ".join(f"{words} {' and '.join(of_them)}" for words, of_them in bounds.items())


def _middle_one(summaries: Sequence[Summary], value: Callable[[Summary], float]) -> Summary:
    """The process whose word counts; of two the one of the lower value."""
    return sorted(summaries, key=value)[(len(summaries) - 1) // 2]


def _evidence(measurement: Measurement, summaries: Sequence[Summary]) -> str:
    summary = summaries[0]
    builds = f"{summary.instances} fresh build{'s' if summary.instances > 1 else ''}"
    builds += " of this process" if len(summaries) > 1 else ""
    asked = f", asked {_times(measurement.attempts - 1)} for more pairs" if measurement.attempts > 1 else ""
    discarded = f", {summary.discarded} discarded as throttled" if summary.discarded else ""
    stopped = {
        "narrow": "until the interval was narrow",
        "noise": "until the noise stopped changing",
        "budget": "until the budget was spent",
    }.get(measurement.stopped_because, measurement.stopped_because)
    return f"{summary.pairs} pairs over {builds}{asked}{discarded}, {stopped}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _speedup_step(outcome: Outcome, judgements: list[_Judgement], moved: bool) -> NextStep | None:
    """The next step: it accepts the new times where only the anchor is missed or the reference moved."""
    blamed = [judgement for judgement in judgements if judgement.outcome is outcome]
    if outcome is Outcome.REGRESSED and all(judgement.by_anchor for judgement in blamed):
        return NextStep.RECORD_NEW_ANCHOR
    if moved and outcome is not Outcome.PASS and not any(judgement.promised for judgement in blamed):
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


def judge_throughput(measurement: Measurement, summaries: Sequence[Summary], remembered: Remembered | None) -> Verdict:
    """Absolute time of the optimized side against the recorded one: loosely, and more so under other software."""
    case_id = measurement.case_id
    if not summaries:
        return _not_timed("throughput", measurement)
    summary = summaries[0]
    now, reference = summary.optimized_ms, summary.reference_ms
    numbers: dict[str, float | str | None] = {"optimized_ms": now.median, "reference_ms": reference.median}
    if remembered is None:
        missing = Outcome.NO_BASELINE
        return Verdict("throughput", case_id, missing, NOTHING_RECORDED, next_step(missing), numbers)
    then = remembered.current
    floor = TIME_FLOOR if remembered.match == "exact" else TIME_FLOOR_OTHER_SOFTWARE
    allowed = tolerance(then.optimized_ms_cv, then.processes, floor, remembered.checks)
    said = votes([_speed(then.optimized_ms, one.optimized_ms) for one in summaries], 1.0, allowed)
    outcome, counts = voted(said), _middle_one(summaries, lambda one: one.optimized_ms.median)
    reason = f"{_times_told(summaries, said)} against {units.milliseconds(then.optimized_ms)} recorded, "
    reason += f"tolerance {units.percent(allowed)}" + (", which bounds nothing" if allowed >= BOUNDS_NOTHING else "")
    if outcome is not Outcome.PASS:
        moved = units.milliseconds(counts.reference_ms.median)
        reason += f"; reference {units.milliseconds(then.reference_ms)} -> {moved}"
    if outcome is Outcome.REGRESSED and _moved_alike(then, counts):
        outcome = Outcome.ENV_INVALID
        reason += ", which is alike: the machine changed, or what both sides share"
    if remembered.differences:
        widened = "widened, " if remembered.match != "exact" else ""
        reason += f" ({widened}since {'; '.join(remembered.differences)})"
    numbers |= {"recorded_ms": then.optimized_ms, "time_tolerance": allowed}
    return Verdict("throughput", case_id, outcome, reason, next_step(outcome), numbers)


def _times_told(summaries: Sequence[Summary], said: Sequence[Outcome]) -> str:
    """`10.1 ms per step`, and of several processes whose word counts."""
    here, *others = (units.milliseconds(one.optimized_ms.median) for one in summaries)
    if not others:
        return f"{here} per step"
    counts = "they disagree" if disputed(said) else f"{decider(len(said))} {'counts' if len(said) % 2 else 'count'}"
    return f"{here} per step{elsewhere(others)} ({counts})"


def _speed(then_ms: float, now: Estimate) -> Estimate:
    """Speed relative to the recorded one; of a time's bounds the upper one is the lower bound of the speed."""
    return Estimate(*(then_ms / ms for ms in (now.median, now.high, now.low)))


def _moved_alike(then: History, summary: Summary) -> bool:
    """The reference slowed by at least half as much as the optimized side."""
    ours = summary.optimized_ms.median / then.optimized_ms - 1
    theirs = summary.reference_ms.median / then.reference_ms - 1
    return theirs >= ours / 2


def _not_timed(check: Literal["speedup", "throughput"], measurement: Measurement) -> Verdict:
    problem = next((d.problem for d in measurement.differences if d.problem), None)
    if problem is not None:
        return Verdict(check, measurement.case_id, Outcome.WRONG, f"not timed: {problem}", NextStep.REPEAT)
    return Verdict(check, measurement.case_id, reason="no pair of blocks was measured", next_step=NextStep.RAISE_BUDGET)

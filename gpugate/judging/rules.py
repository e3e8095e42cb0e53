"""The rules of each check, in order: the first one that applies gives the outcome, and all others only add reasons.

Three questions are answered. Does the optimization still pay? `speedup`: live pairs against the promise. Does the step
still cost the same? `counters`: the bill against the record, and the contract. Is the step as fast as the recorded
code, here and now? `throughput`: the wall time against the record as a coarse net, and the duet with the recorded code.
`equivalence` comes before them: wrong outputs are wrong at any speed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpugate.judging.evidence import Evidence, gather
from gpugate.results.case import CaseResult, find_decider
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.verdict import Check, NextStep, Outcome, Verdict
from gpugate.statistics.intervals import Estimate
from gpugate.statistics.policy import DECIDING_PROCESSES

Facts = Mapping[str, Fact | None]  # None is left out
Numbers = dict[str, float | str | None]


@dataclass(frozen=True)
class Rule:
    """One rule: where it `applies`, its reasons are among those of the verdict.

    `reasons` is a code, whose facts `find_facts` has, or finds the reasons itself. Without an `outcome` the rule
    decides nothing.
    """

    applies: Callable[[Evidence], object]
    reasons: ReasonCode | Callable[[Evidence], Sequence[Reason | None]]
    outcome: Outcome | None = None
    next_step: NextStep | Callable[[Evidence], NextStep | None] | None = None


def decide(result: CaseResult, mode: Mode) -> list[Verdict]:
    """The four verdicts of a measured case. Raises ValueError for a case that was not measured."""
    return decide_by(gather(result, mode))


def decide_by(evidence: Evidence) -> list[Verdict]:
    """The four verdicts of a case, each UNDECIDED where no rule decides."""
    facts, numbers = find_facts(evidence), find_numbers(evidence)
    return [_decide_check(check, evidence, facts, numbers[check]) for check in RULES]


def _decide_check(
    check: Check, evidence: Evidence, facts: Mapping[ReasonCode, Facts], numbers: Mapping[str, float | str | None]
) -> Verdict:
    applying = [rule for rule in RULES[check] if rule.applies(evidence)]
    deciding = next((rule for rule in applying if rule.outcome is not None), None)
    if deciding is None or deciding.outcome is None:
        return Verdict(check, evidence.result.case_id, numbers=numbers)
    found: list[Reason] = []
    for rule in (deciding, *applying):
        if isinstance(rule.reasons, ReasonCode):
            known = {name: value for name, value in facts.get(rule.reasons, {}).items() if value is not None}
            reasons: Sequence[Reason | None] = [Reason(rule.reasons, known)]
        else:
            reasons = rule.reasons(evidence)
        found += [reason for reason in reasons if reason is not None and reason not in found]
    step = deciding.next_step(evidence) if callable(deciding.next_step) else deciding.next_step
    return Verdict(check, evidence.result.case_id, deciding.outcome, tuple(found), step, numbers)


def find_facts(one: Evidence) -> dict[ReasonCode, Facts]:
    """The facts of every reason that is a code alone, beside the numbers of its check. Changes are shares of a time."""
    first, code, record = one.first, one.code, one.record
    times: Facts = {"processes": len(one.timed)}
    faster = one.speedup.median if one.speedup is not None and len(one.timed) == 2 else None
    promise: Facts = {**times, "allowed": one.allowed or None, "faster": faster, "usual_low": one.usual_low or None}
    duet: Facts = {}
    if code is not None:
        duet = {"commit": code.commit, **(_change_of(one.duet.ratio) if one.duet else {"problem": code.problem})}
    not_slower = "not slower" if one.duet is not None else "unchanged"
    pairs: Facts = {}
    if one.timed:
        here, process = one.timed[0], {"attempts": first.attempts, "stopped": first.stopped_because}
        pairs = {"pairs": here.pairs, "builds": here.instances, "discarded": here.discarded, **process}
    return {
        ReasonCode.MACHINE_UNFIT: {"problem": one.unfit},
        ReasonCode.OTHER_WORK: {"cores": one.busy},
        ReasonCode.NOT_CONFIRMED: {"problem": "; ".join(one.failures)},
        **dict.fromkeys(OF_PROMISE, promise),
        ReasonCode.PAIRS: pairs,
        ReasonCode.NO_RECORD: (
            {"processes": record.current.processes, "needed": DECIDING_PROCESSES} if record is not None else {}
        ),
        ReasonCode.SLOW_HOST: {"times": one.slow_host},
        **dict.fromkeys(OF_WALL, times),
        ReasonCode.WALL_OPEN: {**times, **(_change_of(one.wall) if one.wall is not None else {})},
        ReasonCode.THE_MACHINE: {"bill": one.bill_is, "code": not_slower if one.code_is == "not slower" else None},
        **dict.fromkeys(OF_CODE, duet),
        ReasonCode.RECORD_DIFFERS: {"differences": ", ".join(one.differences)},
        ReasonCode.NOT_ENGAGED: {"problem": one.not_engaged},
        ReasonCode.COUNTED: {"problem": first.counters_missing},
    }


def _change_of(ratio: Estimate) -> Facts:
    return {"change": ratio.median - 1, "change_low": ratio.low - 1, "change_high": ratio.high - 1}


def find_numbers(one: Evidence) -> Mapping[Check, Mapping[str, float | str | None]]:
    """The evidence of each check in numbers; the times are those of the process whose speedup decides, as in tables."""
    speedup: Numbers = {}
    wall: Numbers = {}
    if one.timed:
        shown, record = find_decider(one.timed), one.record.current if one.record is not None else None
        found = shown.speedup
        speedup = {"speedup": found.median, "speedup_low": found.low, "speedup_high": found.high}
        speedup |= {"min_speedup": one.promise.min_speedup, "recorded_speedup": record.speedup if record else None}
        wall = {"optimized_ms": shown.optimized_ms.median, "reference_ms": shown.reference_ms.median}
        wall |= {"recorded_ms": record.optimized_ms} if record is not None else {}
        if one.wall is not None and one.wall_limits is not None:
            wall |= {"wall_change": one.wall.median - 1, "time_tolerance": one.wall_limits.allowed}
            wall["detectable_by_time"] = one.wall_limits.detectable
        if one.detectable_by_bill is not None:
            wall["detectable_by_bill"] = one.detectable_by_bill
    counters = one.first.optimized_counters
    return {"equivalence": one.outputs.numbers, "speedup": speedup, "throughput": wall, "counters": counters}


# What several rules have.

OF_PROMISE = (ReasonCode.SPEEDUP_BELOW_PROMISE, ReasonCode.PROMISE_OPEN, ReasonCode.PROMISE_KEPT)
OF_SLOW_HOST = ReasonCode.SLOW_HOST, Outcome.UNDECIDED, NextStep.COOL_MACHINE
OF_CUT_OFF_DUET = ReasonCode.CODE_SEEMS_SLOWER, Outcome.UNDECIDED, NextStep.FIND_COMMIT
OF_WALL = (ReasonCode.WALL_AS_RECORDED, ReasonCode.FASTER_THAN_RECORD, ReasonCode.SLOWER_THAN_RECORD)
OF_CODE = (
    ReasonCode.CODE_SLOWER,
    ReasonCode.CODE_SEEMS_SLOWER,
    ReasonCode.CODE_NOT_SLOWER,
    ReasonCode.CODE_UNDECIDED,
)


def _longer(one: Evidence) -> NextStep:
    """Slower code needs no longer measurement, and beside other work on a CPU none narrows an interval."""
    if one.code_is == "slower":
        return NextStep.FIND_COMMIT
    noisy = one.busy is not None or one.first.stopped_because == "noise"
    return NextStep.FREE_CORES if one.result.device_kind == "cpu" and noisy else NextStep.MEASURE_LONGER


def _record(one: Evidence) -> NextStep | None:
    return None if one.outputs.problems else NextStep.RECORD  # no baseline may hold a wrong output


def _mend(one: Evidence) -> NextStep:
    if one.result.environment_problem is None:
        return NextStep.USE_CUDA
    return NextStep.RAISE_QUOTA if "throttled_periods" in one.first.optimized_counters else NextStep.COOL_MACHINE


def _trace(one: Evidence) -> NextStep | None:
    """Nothing takes a profile of a case of several ranks."""
    return None if "ranks" in one.first.optimized_counters else NextStep.TRACE


def _nothing(problem: str | None) -> Sequence[Reason]:
    return [Reason(ReasonCode.NOTHING_MEASURED, {"problem": problem} if problem is not None else {})]


def _unless_confirmed(alarms: Callable[[Evidence], object]) -> Rule:
    """An alarm of one process is none where every further process failed."""
    unconfirmed = ReasonCode.NOT_CONFIRMED, Outcome.UNDECIDED, NextStep.REPEAT
    return Rule(lambda one: one.alone and one.failures and alarms(one), *unconfirmed)


# Outputs that cannot be compared, too: nothing is timed or counted then.
NO_PAIRS = Rule(lambda one: not one.timed, lambda one: _nothing("no pairs"), Outcome.UNDECIDED, NextStep.MEASURE_LONGER)
NO_TIMES = (
    NO_PAIRS,
    Rule(lambda one: one.impossible, lambda one: [one.impossible], Outcome.UNDECIDED, NextStep.CHECK_SIZE),
    Rule(lambda one: one.slowed, lambda one: [one.slowed], Outcome.UNDECIDED, NextStep.FREE_CORES),
    Rule(lambda one: one.unfit, ReasonCode.MACHINE_UNFIT, Outcome.ENV_INVALID, _mend),
)
RULES: Mapping[Check, tuple[Rule, ...]] = {
    "equivalence": (
        Rule(lambda one: one.outputs.problems, lambda one: one.outputs.problems[:1], Outcome.WRONG, _trace),
        Rule(lambda one: one.outputs.agreements, lambda one: one.outputs.agreements, Outcome.PASS),
        Rule(lambda one: not one.first.differences, lambda one: _nothing(None), Outcome.UNDECIDED),
    ),
    "speedup": (
        Rule(lambda one: one.inert, ReasonCode.DID_NOTHING, Outcome.NOT_ENGAGED, _trace),
        *NO_TIMES,
        _unless_confirmed(lambda one: one.promise_is == "missed"),
        Rule(lambda one: one.promise_is == "missed", ReasonCode.SPEEDUP_BELOW_PROMISE, Outcome.REGRESSED, _longer),
        Rule(lambda one: one.promise_is == "open", ReasonCode.PROMISE_OPEN, Outcome.UNDECIDED, _longer),
        Rule(lambda one: one.promise_is == "kept", ReasonCode.PROMISE_KEPT, Outcome.PASS),
        Rule(lambda one: one.busy and one.promise_is == "open", ReasonCode.OTHER_WORK),
        Rule(lambda one: one.timed, ReasonCode.PAIRS),
    ),
    "throughput": (
        *NO_TIMES,
        Rule(lambda one: one.code_is == "slower", ReasonCode.CODE_SLOWER, Outcome.REGRESSED, NextStep.FIND_COMMIT),
        Rule(lambda one: one.code_is == "seems slower", *OF_CUT_OFF_DUET),
        Rule(lambda one: one.lacks_record, ReasonCode.NO_RECORD, Outcome.NO_BASELINE, _record),
        Rule(lambda one: one.record is None, ReasonCode.NO_RECORD, Outcome.PASS),
        Rule(lambda one: one.only_the_machine, ReasonCode.THE_MACHINE, Outcome.PASS),
        Rule(lambda one: one.slow_host and one.not_within, *OF_SLOW_HOST),
        _unless_confirmed(lambda one: one.wall_is == "slower"),
        Rule(lambda one: one.record_convicts, ReasonCode.SLOWER_THAN_RECORD, Outcome.REGRESSED, _longer),
        Rule(lambda one: one.wall_is == "slower", ReasonCode.SLOWER_THAN_RECORD, Outcome.UNDECIDED, _longer),
        Rule(lambda one: one.wall_is == "open", ReasonCode.WALL_OPEN, Outcome.UNDECIDED, _longer),
        Rule(
            lambda one: one.wall_is == "faster" and one.gained, ReasonCode.FASTER_THAN_RECORD, Outcome.IMPROVED, _record
        ),
        Rule(lambda one: one.wall_is == "as recorded", ReasonCode.WALL_AS_RECORDED, Outcome.PASS),
        Rule(lambda one: one.code_is == "not slower", ReasonCode.CODE_NOT_SLOWER),
        Rule(lambda one: one.code_is == "undecided", ReasonCode.CODE_UNDECIDED),
        Rule(lambda one: one.differences, ReasonCode.RECORD_DIFFERS),
        Rule(lambda one: one.busy and one.wall_is == "open", ReasonCode.OTHER_WORK),
    ),
    "counters": (
        Rule(lambda one: one.not_engaged, ReasonCode.NOT_ENGAGED, Outcome.NOT_ENGAGED, _trace),
        NO_PAIRS,
        Rule(lambda one: one.unseen, lambda one: [one.unseen], Outcome.UNDECIDED, NextStep.DECLARE_ENGAGEMENT),
        Rule(lambda one: one.unchecked, lambda one: _nothing(one.unchecked), Outcome.UNDECIDED, NextStep.USE_CUDA),
        Rule(lambda one: one.idle.sure, lambda one: one.idle.reasons, Outcome.NOT_ENGAGED, _trace),
        _unless_confirmed(lambda one: one.costs_more),
        Rule(lambda one: "grown_bytes" in one.grown.sure, lambda one: one.grown.reasons, Outcome.REGRESSED, _trace),
        Rule(lambda one: one.grown.sure, lambda one: one.grown.reasons, Outcome.REGRESSED, NextStep.ACCEPT),
        Rule(lambda one: one.broken_by_machine and one.unfit, ReasonCode.MACHINE_UNFIT, Outcome.ENV_INVALID, _mend),
        Rule(lambda one: one.broken_by_machine, *OF_SLOW_HOST),
        Rule(lambda one: one.lagging.sure, lambda one: one.lagging.reasons, Outcome.NOT_ENGAGED, _trace),
        Rule(lambda one: one.broken.sure, lambda one: one.broken.reasons, Outcome.REGRESSED, _trace),
        Rule(lambda one: not one.costs_more and not one.broken_by_machine, ReasonCode.COUNTED, Outcome.PASS),
        Rule(lambda one: one.doubted, lambda one: one.doubted),
        Rule(lambda one: one.record and one.bill_is == "not compared", ReasonCode.NO_BILL),
    ),
}

"""The rules of each check, in order: the first one that applies gives the outcome, and all others only add reasons.

Three questions are answered. Does the optimization still pay? `speedup`: live pairs against the promise. Does the step
still cost the same? `counters`: the bill against the record, and the contract. Is the step as fast as the recorded
code, here and now? `throughput`: the wall time against the record as a coarse net, and the duet with the recorded code.
`equivalence` comes before them: wrong outputs are wrong at any speed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpugate.judging.evidence import WIDEST_HALF_WIDTH, Evidence, gather
from gpugate.results.case import CaseResult
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.verdict import Check, NextStep, Outcome, Verdict
from gpugate.statistics.intervals import Estimate
from gpugate.statistics.policy import MIN_PROCESSES

Reasons = Sequence[Reason]
Facts = Mapping[str, Fact | None]  # None is left out
Numbers = Mapping[str, float | str | None]


@dataclass(frozen=True)
class Rule:
    """One rule: where it `applies`, its reasons are among those of the verdict.

    `reasons` is a code, whose facts are those of the evidence, or finds the reasons itself. Without an `outcome` the
    rule decides nothing.
    """

    applies: Callable[[Evidence], object]
    reasons: ReasonCode | Callable[[Evidence], Reasons]
    outcome: Outcome | None = None
    next_step: NextStep | Callable[[Evidence], NextStep | None] | None = None


def decide(result: CaseResult, mode: Mode) -> list[Verdict]:
    """The four verdicts of a measured case. Raises ValueError for a case that was not measured."""
    return decide_by(gather(result, mode))


def decide_by(evidence: Evidence) -> list[Verdict]:
    """The four verdicts of a case, each INCONCLUSIVE where no rule decides."""
    return [_decide_check(check, rules, evidence) for check, rules in RULES.items()]


def _decide_check(check: Check, rules: Sequence[Rule], evidence: Evidence) -> Verdict:
    applying = [rule for rule in rules if rule.applies(evidence)]
    numbers = NUMBERS[check](evidence)
    deciding = next((rule for rule in applying if rule.outcome is not None), None)
    if deciding is None or deciding.outcome is None:
        return Verdict(check, evidence.result.case_id, numbers=numbers)
    found = [reason for rule in (deciding, *applying) for reason in _find_reasons(rule, evidence)]
    reasons = tuple(reason for index, reason in enumerate(found) if reason not in found[:index])
    step = deciding.next_step(evidence) if callable(deciding.next_step) else deciding.next_step
    return Verdict(check, evidence.result.case_id, deciding.outcome, reasons, step, numbers)


def _find_reasons(rule: Rule, evidence: Evidence) -> Reasons:
    if not isinstance(rule.reasons, ReasonCode):
        return rule.reasons(evidence)
    found = FACTS[rule.reasons](evidence) if rule.reasons in FACTS else {}
    return [Reason(rule.reasons, {name: value for name, value in found.items() if value is not None})]


# Next steps that depend on the evidence.


def _longer(one: Evidence) -> NextStep:
    """On a CPU that other work keeps busy, a longer measurement does not narrow an interval."""
    noisy = one.busy is not None or one.first.stopped_because == "noise"
    return NextStep.FREE_CORES if one.result.device_kind == "cpu" and noisy else NextStep.MEASURE_LONGER


def _record(one: Evidence) -> NextStep | None:
    return None if one.outputs.problems else NextStep.RECORD  # no baseline may hold a wrong output


def _cool(one: Evidence) -> NextStep:
    return NextStep.RAISE_QUOTA if "throttled_periods" in one.first.optimized_counters else NextStep.COOL_MACHINE


def _after_no_result(one: Evidence) -> NextStep:
    return NextStep.CHECK_SIZE if one.times_ceiling is not None else NextStep.KEEP_APART


def _trace(one: Evidence) -> NextStep:
    return NextStep.TRACE_BOTH_SIDES if one.outputs.comparable else NextStep.REPEAT


# The facts of the reasons.


def _of_speedup(found: Estimate) -> dict[str, float]:
    return {"speedup": found.median, "speedup_low": found.low, "speedup_high": found.high}


def _of_promise(one: Evidence) -> Facts:
    return {"value": one.promise.min_speedup, "allowed": one.allowed or None, "processes": len(one.timed)}


def _of_width(one: Evidence) -> Facts:
    return {"half_width": one.speedup.half_width if one.speedup else None, "widest": WIDEST_HALF_WIDTH}


def _of_record(one: Evidence) -> Facts:
    recorded = {"processes": one.record.current.processes, "needed": MIN_PROCESSES} if one.record else {}
    return {"purpose": one.mode.value, **recorded}


def _of_pairs(one: Evidence) -> Facts:
    found, measured = one.timed[0], {"attempts": one.first.attempts, "stopped": one.first.stopped_because}
    return {"pairs": found.pairs, "builds": found.instances, "discarded": found.discarded, **measured}


def _of_wall(one: Evidence) -> Facts:
    if one.wall is None:
        return {}
    return {"change": one.wall.value.median - 1, "allowed": one.wall.allowed, "processes": len(one.timed)}


def _of_machine(one: Evidence) -> Facts:
    bill = "unchanged" if one.bill_holds else "grown" if one.grown.sure else "not recorded"
    code = None if one.code_is != "not slower" else "not slower" if one.duet is not None else "unchanged"
    return {**_of_wall(one), "bill": bill, "code": code}


def _of_code(one: Evidence) -> Facts:
    """Changes are shares of the time per step."""
    if one.code is None or one.duet is None:
        return {} if one.code is None else {"commit": one.code.commit, "problem": one.code.problem}
    ratio, processes = one.duet.ratio, len(one.duet.processes)
    change = {"change": ratio.median - 1, "change_low": ratio.low - 1, "change_high": ratio.high - 1}
    return {"commit": one.code.commit, "processes": processes, **change}


def _of_bill(one: Evidence) -> Facts:
    if one.first.counters_missing is not None:
        return {"problem": one.first.counters_missing}
    return {name: one.first.optimized_counters.get(name) for name in ("kernel_launches", "graph_launches", "kernels")}


def _of_cores(one: Evidence) -> Facts:
    cores = one.result.cores_changed
    return {} if cores is None else {"recorded_cores": cores.recorded, "cores": cores.now}


FACTS: Mapping[ReasonCode, Callable[[Evidence], Facts]] = {
    ReasonCode.MACHINE_UNFIT: lambda one: {"problem": one.unfit},
    ReasonCode.OTHER_WORK: lambda one: {"cores": one.busy},
    ReasonCode.NOT_CONFIRMED: lambda one: {"problem": "; ".join(one.failures)},
    ReasonCode.SPEEDUP_BELOW_PROMISE: _of_promise,
    ReasonCode.PROMISE_OPEN: _of_promise,
    ReasonCode.PROMISE_KEPT: _of_promise,
    ReasonCode.INTERVAL_TOO_WIDE: _of_width,
    ReasonCode.PAIRS: _of_pairs,
    ReasonCode.NO_RECORD: _of_record,
    ReasonCode.OTHER_CORES: _of_cores,
    ReasonCode.SLOW_HOST: lambda one: {"times": one.slow_host},
    ReasonCode.WALL_AS_RECORDED: _of_wall,
    ReasonCode.FASTER_THAN_RECORD: _of_wall,
    ReasonCode.SLOWER_THAN_RECORD: _of_wall,
    ReasonCode.WALL_OPEN: _of_wall,
    ReasonCode.THE_MACHINE: _of_machine,
    ReasonCode.CODE_SLOWER: _of_code,
    ReasonCode.CODE_NOT_SLOWER: _of_code,
    ReasonCode.CODE_UNDECIDED: _of_code,
    ReasonCode.RECORD_DIFFERS: lambda one: {"differences": ", ".join(one.differences)},
    ReasonCode.NOT_ENGAGED: lambda one: {"problem": one.not_engaged},
    ReasonCode.COUNTED: _of_bill,
}


def _nothing(problem: str | None) -> Reasons:
    return [Reason(ReasonCode.NOTHING_MEASURED, {"problem": problem} if problem is not None else {})]


def _list_others(one: Evidence) -> Reasons:
    return [Reason(ReasonCode.FRESH_PROCESS, _of_speedup(each.speedup)) for each in one.timed[1:]]


# The rules.


def _is_uncounted(one: Evidence) -> bool:
    return not one.first.optimized_counters and one.first.counters_missing is None


def _unless_confirmed(alarms: Callable[[Evidence], object]) -> Rule:
    """An alarm of one process is none where every further process failed."""
    return Rule(
        lambda one: one.unconfirmed and alarms(one), ReasonCode.NOT_CONFIRMED, Outcome.INCONCLUSIVE, NextStep.REPEAT
    )


NO_TIMES = (
    Rule(lambda one: one.not_comparable, lambda one: _nothing(one.not_comparable), Outcome.WRONG, NextStep.REPEAT),
    Rule(lambda one: not one.timed, lambda one: _nothing("no pairs"), Outcome.INCONCLUSIVE, NextStep.RAISE_BUDGET),
    Rule(
        lambda one: one.result.ranks_share_cores, ReasonCode.RANKS_SHARE_CORES, Outcome.INCONCLUSIVE, NextStep.USE_CUDA
    ),
    Rule(lambda one: one.no_result, lambda one: one.no_result, Outcome.INCONCLUSIVE, _after_no_result),
    Rule(lambda one: one.unfit, ReasonCode.MACHINE_UNFIT, Outcome.ENV_INVALID, _cool),
)
RULES: Mapping[Check, tuple[Rule, ...]] = {
    "equivalence": (
        Rule(lambda one: one.outputs.problems, lambda one: one.outputs.problems[:1], Outcome.WRONG, _trace),
        Rule(lambda one: one.outputs.agreements, lambda one: one.outputs.agreements, Outcome.PASS),
        Rule(lambda one: not one.first.differences, lambda one: _nothing(None), Outcome.INCONCLUSIVE),
    ),
    "speedup": (
        Rule(lambda one: one.inert, ReasonCode.DID_NOTHING, Outcome.NOT_ENGAGED, NextStep.TRACE),
        *NO_TIMES,
        _unless_confirmed(lambda one: one.promise_is == "missed"),
        Rule(lambda one: one.promise_is == "missed", ReasonCode.SPEEDUP_BELOW_PROMISE, Outcome.REGRESSED, _longer),
        Rule(lambda one: one.too_wide, ReasonCode.INTERVAL_TOO_WIDE, Outcome.UNDECIDED, _longer),
        Rule(lambda one: one.promise_is == "open", ReasonCode.PROMISE_OPEN, Outcome.INCONCLUSIVE, _longer),
        Rule(lambda one: one.promise_is == "kept", ReasonCode.PROMISE_KEPT, Outcome.PASS),
        Rule(lambda one: one.timed[1:], _list_others),
        Rule(lambda one: one.busy and (one.promise_is == "open" or one.too_wide), ReasonCode.OTHER_WORK),
        Rule(lambda one: one.timed, ReasonCode.PAIRS),
    ),
    "throughput": (
        *NO_TIMES,
        Rule(lambda one: one.code_is == "slower", ReasonCode.CODE_SLOWER, Outcome.REGRESSED, NextStep.FIND_COMMIT),
        Rule(lambda one: one.result.cores_changed, ReasonCode.OTHER_CORES, Outcome.ENV_INVALID, NextStep.SAME_CORES),
        Rule(lambda one: one.lacks_record, ReasonCode.NO_RECORD, Outcome.NO_BASELINE, _record),
        Rule(lambda one: one.record is None, ReasonCode.NO_RECORD, Outcome.PASS),
        Rule(lambda one: one.only_the_machine, ReasonCode.THE_MACHINE, Outcome.PASS),
        Rule(
            lambda one: one.slow_host and one.not_within,
            ReasonCode.SLOW_HOST,
            Outcome.INCONCLUSIVE,
            NextStep.COOL_MACHINE,
        ),
        _unless_confirmed(lambda one: one.wall_is == "slower"),
        Rule(lambda one: one.record_convicts, ReasonCode.SLOWER_THAN_RECORD, Outcome.REGRESSED, _longer),
        Rule(lambda one: one.wall_is == "slower", ReasonCode.SLOWER_THAN_RECORD, Outcome.INCONCLUSIVE, _longer),
        Rule(lambda one: one.wall_is == "open", ReasonCode.WALL_OPEN, Outcome.INCONCLUSIVE, _longer),
        Rule(
            lambda one: one.wall_is == "faster" and one.gained, ReasonCode.FASTER_THAN_RECORD, Outcome.IMPROVED, _record
        ),
        Rule(lambda one: one.wall_is == "as recorded", ReasonCode.WALL_AS_RECORDED, Outcome.PASS),
        Rule(lambda one: one.code_is == "not slower", ReasonCode.CODE_NOT_SLOWER),
        Rule(lambda one: one.code_is == "undecided", ReasonCode.CODE_UNDECIDED),
        Rule(lambda one: one.has_no_bill, ReasonCode.NO_BILL),
        Rule(lambda one: one.differences, ReasonCode.RECORD_DIFFERS),
        Rule(lambda one: one.busy and one.wall_is == "open", ReasonCode.OTHER_WORK),
    ),
    "counters": (
        Rule(lambda one: one.not_engaged, ReasonCode.NOT_ENGAGED, Outcome.NOT_ENGAGED, NextStep.TRACE),
        Rule(lambda one: one.idle.sure, lambda one: one.idle.reasons, Outcome.NOT_ENGAGED, NextStep.TRACE),
        Rule(_is_uncounted, lambda one: _nothing(one.not_comparable), Outcome.WRONG, NextStep.REPEAT),
        Rule(lambda one: one.unseen, lambda one: one.unseen, Outcome.INCONCLUSIVE, NextStep.DECLARE_ENGAGEMENT),
        Rule(lambda one: one.unchecked, lambda one: _nothing(one.unchecked), Outcome.INCONCLUSIVE, NextStep.USE_CUDA),
        _unless_confirmed(lambda one: one.costs_more),
        Rule(lambda one: one.grown.sure, lambda one: one.grown.reasons, Outcome.REGRESSED, NextStep.REPEAT),
        Rule(lambda one: one.broken_by_machine and one.unfit, ReasonCode.MACHINE_UNFIT, Outcome.ENV_INVALID, _cool),
        Rule(lambda one: one.broken_by_machine, ReasonCode.SLOW_HOST, Outcome.INCONCLUSIVE, NextStep.COOL_MACHINE),
        Rule(lambda one: one.lagging.sure, lambda one: one.lagging.reasons, Outcome.NOT_ENGAGED, NextStep.TRACE),
        Rule(lambda one: one.broken.sure, lambda one: one.broken.reasons, Outcome.REGRESSED, NextStep.REPEAT),
        Rule(lambda one: not one.costs_more and not one.broken_by_machine, ReasonCode.COUNTED, Outcome.PASS),
        Rule(lambda one: one.doubted, lambda one: one.doubted),
        Rule(lambda one: one.alike, lambda one: one.alike),
        Rule(lambda one: one.has_no_bill, ReasonCode.NO_BILL),
    ),
}


# The evidence in numbers.


def _number_speedup(one: Evidence) -> Numbers:
    if not one.timed:
        return {}
    recorded = one.record.current.speedup if one.record is not None else None
    beyond = {} if one.times_ceiling is None else {"times_ceiling": one.times_ceiling}
    promised = {"min_speedup": one.promise.min_speedup, "recorded_speedup": recorded}
    return {**_of_speedup(one.timed[0].speedup), **promised, **beyond}


def _number_wall(one: Evidence) -> Numbers:
    if not one.timed:
        return {}
    found: dict[str, float | str | None] = {
        "optimized_ms": one.timed[0].optimized_ms.median,
        "reference_ms": one.timed[0].reference_ms.median,
    }
    if one.record is not None:
        found["recorded_ms"] = one.record.current.optimized_ms
    if one.wall is not None:
        found |= {"wall_change": one.wall.value.median - 1, "time_tolerance": one.wall.allowed}
        found["detectable_by_time"] = one.wall.detectable
    return found


NUMBERS: Mapping[Check, Callable[[Evidence], Numbers]] = {
    "equivalence": lambda one: one.outputs.numbers,
    "speedup": _number_speedup,
    "throughput": _number_wall,
    "counters": lambda one: one.first.optimized_counters,
}

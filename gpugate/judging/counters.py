"""The verdict about counters: the optimization happened, within its limits, at no more calls than recorded. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpugate.counter_names import OF_TIME
from gpugate.judging.machine_state import with_environment
from gpugate.judging.next_step import next_step
from gpugate.judging.plausibility import vanished_work
from gpugate.measurement.record import Counters, Measurement
from gpugate.results.case import Remembered
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.verdict import NextStep, Outcome, Verdict
from gpugate.workload import Contract, Limit

# Counts that repeat exactly: more of them than recorded is a regression even on a bad night. Memsets do not: they come
# with the algorithm that cuDNN happens to pick in a process.
EXACT_COUNTERS = (
    "graph_launches",
    "framework_kernels",
    "host_to_device_copies",
    "device_to_host_copies",
    "device_to_device_copies",
    "pageable_copies",
    "synchronizing_calls",
)
# One convolution is one kernel by one algorithm and two by another. Where those are timed against each other, machines
# of one model end the race differently.
EXACT_UNLESS_AUTOTUNED = ("kernel_launches", "kernels")


def judge_counters(
    measurement: Measurement, contract: Contract | None, remembered: Remembered | None, problem: str | None = None
) -> Verdict:
    """PASS where the optimization happened, within its limits, without a leak and at no more calls than recorded.

    `problem` is the reason for which this machine's times decide nothing: limits of times then decide nothing either.
    """
    case_id, found = measurement.case_id, measurement.optimized_counters
    numbers: dict[str, float | str | None] = dict(found)
    missing, trace = measurement.counters_missing, next_step(Outcome.NOT_ENGAGED)
    if measurement.not_engaged is not None:
        why = _because(ReasonCode.NOT_ENGAGED, measurement.not_engaged)
        return Verdict("counters", case_id, Outcome.NOT_ENGAGED, why, trace, numbers)
    contract = contract or Contract()
    unseen = vanished_work(measurement, contract)
    if unseen is not None:
        seen = Verdict("counters", case_id, Outcome.INCONCLUSIVE, (unseen,), NextStep.DECLARE_ENGAGEMENT, numbers)
        return with_environment(seen, problem if unseen.code is ReasonCode.FEW_OPERATORS_SEEN else None)
    unknown = {limit.counter for limit in (*contract.engaged, *contract.limits)} - found.keys()
    if missing is not None and unknown:
        why = _because(ReasonCode.CONTRACT_NOT_CHECKED, missing)
        return Verdict("counters", case_id, Outcome.INCONCLUSIVE, why, NextStep.USE_CUDA)
    if not found and missing is None:
        wrong = next((one.problem for one in measurement.differences if one.problem), "nothing was measured")
        why = _because(ReasonCode.NOT_COUNTED, wrong)
        return Verdict("counters", case_id, Outcome.WRONG, why, NextStep.REPEAT)
    idle = _broken(contract.engaged, measurement)
    if idle:
        return Verdict("counters", case_id, Outcome.NOT_ENGAGED, tuple(idle.values()), trace, numbers)
    broken = _broken(contract.limits, measurement)
    over = Verdict("counters", case_id, Outcome.REGRESSED, tuple(broken.values()), NextStep.REPEAT, numbers)
    if broken and (problem is None or broken.keys() - OF_TIME):
        return over
    grown = _leak_reasons(found, measurement.reference_counters)
    grown = grown or _above_record(found, remembered.optimized_counters if remembered else {})
    if grown:
        return Verdict("counters", case_id, Outcome.REGRESSED, grown, next_step(Outcome.REGRESSED), numbers)
    if broken:
        return with_environment(over, problem)
    # Without counted kernels, `Side.engaged` and the CPU's counters were still checked.
    why = (_count_reason(found),) if missing is None else _because(ReasonCode.COUNTED_IN_PART, missing)
    return Verdict("counters", case_id, Outcome.PASS, why, numbers=numbers)


def rests_on_times(verdict: Verdict) -> bool:
    """True for a NOT_ENGAGED that a slow host can cause in one process: each broken limit is one of a time."""
    counters = {reason.facts.get("counter") for reason in verdict.reasons}
    return verdict.outcome is Outcome.NOT_ENGAGED and counters <= OF_TIME


def _count_reason(found: Counters) -> Reason:
    return Reason(ReasonCode.COUNTED, {name: found[name] for name in ("kernel_launches", "graph_launches", "kernels")})


def _because(code: ReasonCode, problem: str) -> tuple[Reason]:
    return (Reason(code, {"problem": problem}),)


def _broken(limits: Sequence[Limit], measurement: Measurement) -> dict[str, Reason]:
    """The reason for each broken limit, by its counter."""
    found, reference = measurement.optimized_counters, measurement.reference_counters
    return {limit.counter: reason for limit in limits if (reason := broken_limit(limit, found, reference))}


def broken_limit(limit: Limit, found: Counters, reference: Counters) -> Reason | None:
    """The reason for a broken limit, else None. A counter that was not measured breaks its limit."""
    value, counter = found.get(limit.counter), limit.counter
    if value is None:
        return Reason(ReasonCode.COUNTER_NOT_MEASURED, {"counter": counter})
    if limit.at_least is not None and value < limit.at_least:
        return Reason(ReasonCode.COUNTER_BELOW_LIMIT, {"counter": counter, "value": value, "limit": limit.at_least})
    if limit.at_most is not None and value > limit.at_most:
        return Reason(ReasonCode.COUNTER_ABOVE_LIMIT, {"counter": counter, "value": value, "limit": limit.at_most})
    least, most, theirs = limit.at_least_of_reference, limit.at_most_of_reference, reference.get(counter)
    if theirs is None:
        of_reference = least is not None or most is not None
        return Reason(ReasonCode.COUNTER_NOT_MEASURED, {"counter": counter}) if of_reference else None
    facts: dict[str, Fact] = {"counter": counter, "value": value}
    if least is not None and value < least * theirs:
        facts |= {"limit": least * theirs, "share": least}
        return Reason(ReasonCode.COUNTER_BELOW_SHARE_OF_REFERENCE, facts)
    if most is not None and value > most * theirs:
        facts |= {"limit": most * theirs, "share": most}
        return Reason(ReasonCode.COUNTER_ABOVE_SHARE_OF_REFERENCE, facts)
    return None


def _leak_reasons(found: Counters, reference: Counters) -> tuple[Reason, ...]:
    """A leak that the reference has too is not the optimization's."""
    ours, theirs = (counters.get("grown_bytes", 0.0) for counters in (found, reference))
    return (Reason(ReasonCode.MEMORY_GROWS, {"bytes": ours}),) if ours > theirs else ()


def _above_record(found: Counters, recorded: Counters) -> tuple[Reason, ...]:
    autotuned = all(counters.get("autotuned", 0.0) > 0 for counters in (found, recorded))
    return tuple(
        Reason(ReasonCode.COUNTER_ABOVE_RECORD, {"counter": name, "value": found[name], "recorded": recorded[name]})
        for name in (*(() if autotuned else EXACT_UNLESS_AUTOTUNED), *EXACT_COUNTERS)
        if name in found and name in recorded and found[name] > _most(recorded[name])
    )


def _most(recorded: float) -> float:
    """The largest accepted count. The threads of a pipeline give no whole number in a step: such a count may be a
    tenth, and one, above the recorded one."""
    return recorded if recorded == int(recorded) else 1.1 * recorded + 1

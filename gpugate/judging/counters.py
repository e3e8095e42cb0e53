"""The verdict about counters: the optimization happened, within its limits, at no more calls than recorded. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpugate.counter_names import OF_TIME
from gpugate.judging.machine_state import with_environment
from gpugate.judging.next_step import next_step
from gpugate.judging.plausibility import vanished_work
from gpugate.measurement.record import Counters, Measurement
from gpugate.results.case import Remembered
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
    step = next_step(Outcome.NOT_ENGAGED)
    if measurement.not_engaged is not None:
        return Verdict("counters", case_id, Outcome.NOT_ENGAGED, measurement.not_engaged, step, numbers)
    contract = contract or Contract()
    question = vanished_work(measurement, contract)
    if question is not None:
        reason = f"is the work done? {question}, and nothing declares why"
        return Verdict("counters", case_id, Outcome.INCONCLUSIVE, reason, NextStep.DECLARE_ENGAGEMENT, numbers)
    unknown = {limit.counter for limit in (*contract.engaged, *contract.limits)} - found.keys()
    if measurement.counters_missing is not None and unknown:
        reason = f"the contract was not checked: {measurement.counters_missing}"
        return Verdict("counters", case_id, Outcome.INCONCLUSIVE, reason, NextStep.USE_CUDA)
    if not found and measurement.counters_missing is None:
        why = next((one.problem for one in measurement.differences if one.problem), "nothing was measured")
        return Verdict("counters", case_id, Outcome.WRONG, f"not counted: {why}", NextStep.REPEAT)
    idle = _broken(contract.engaged, measurement)
    if idle:
        return Verdict("counters", case_id, Outcome.NOT_ENGAGED, "; ".join(idle.values()), step, numbers)
    broken = _broken(contract.limits, measurement)
    over = Verdict("counters", case_id, Outcome.REGRESSED, "; ".join(broken.values()), NextStep.REPEAT, numbers)
    if broken and (problem is None or broken.keys() - OF_TIME):
        return over
    grown = _leaked(found, measurement.reference_counters)
    grown = grown or _grown(found, remembered.optimized_counters if remembered else {})
    if grown:
        return Verdict("counters", case_id, Outcome.REGRESSED, grown, next_step(Outcome.REGRESSED), numbers)
    if broken:
        return with_environment(over, problem)
    return Verdict("counters", case_id, Outcome.PASS, _counted(measurement), numbers=numbers)


def _counted(measurement: Measurement) -> str:
    """The counts in words. Without counted kernels, `Side.engaged` and the CPU's counters were still checked."""
    found = measurement.optimized_counters
    if measurement.counters_missing is not None:
        return f"engaged by its own account; not measured: {measurement.counters_missing}"
    launches = f"{found['kernel_launches']:g} launches, {found['graph_launches']:g} graph launches"
    return f"{launches}, {found['kernels']:g} kernels"


def _broken(limits: Sequence[Limit], measurement: Measurement) -> dict[str, str]:
    """A sentence for each broken limit, by its counter."""
    found, reference = measurement.optimized_counters, measurement.reference_counters
    return {limit.counter: text for limit in limits if (text := broken_limit(limit, found, reference))}


def broken_limit(limit: Limit, found: Counters, reference: Counters) -> str | None:
    """A sentence about a broken limit, else None. A counter that was not measured breaks its limit."""
    value = found.get(limit.counter)
    if value is None:
        return f"{limit.counter} was not measured"
    if limit.at_least is not None and value < limit.at_least:
        return f"{limit.counter} {value:g} is below {limit.at_least:g}"
    if limit.at_most is not None and value > limit.at_most:
        return f"{limit.counter} {value:g} is above {limit.at_most:g}"
    if limit.at_most_of_reference is not None:
        allowed = limit.at_most_of_reference * reference.get(limit.counter, 0.0)
        if value > allowed:
            return f"{limit.counter} {value:g} is above {allowed:g}, {limit.at_most_of_reference:g} of the reference's"
    return None


def _leaked(found: Counters, reference: Counters) -> str:
    """A leak that the reference has too is not the optimization's."""
    ours, theirs = (counters.get("grown_bytes", 0.0) for counters in (found, reference))
    return f"every step leaves {ours:,.0f} bytes more device memory allocated" if ours > theirs else ""


def _grown(found: Counters, recorded: Counters) -> str:
    autotuned = all(counters.get("autotuned", 0.0) > 0 for counters in (found, recorded))
    changes = [
        f"{name} {recorded[name]:g} -> {found[name]:g}"
        for name in (*(() if autotuned else EXACT_UNLESS_AUTOTUNED), *EXACT_COUNTERS)
        if name in found and name in recorded and found[name] > _most(recorded[name])
    ]
    return f"more per step than recorded: {', '.join(changes)}" if changes else ""


def _most(recorded: float) -> float:
    """The largest accepted count. The threads of a pipeline give no whole number in a step: such a count may be a
    tenth, and one, above the recorded one."""
    return recorded if recorded == int(recorded) else 1.1 * recorded + 1

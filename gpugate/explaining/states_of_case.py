"""The states of a measured case: its two sides in this run, and the optimized one as its baseline has it."""

from __future__ import annotations

import math
import statistics

from gpugate.explaining.autopsy import autopsy
from gpugate.explaining.cause import LIKE_BEFORE
from gpugate.explaining.state import State
from gpugate.measurement.record import Measurement, Mismatch
from gpugate.measurement.step_profile import StepProfile
from gpugate.results.autopsy import Autopsy
from gpugate.results.case import CaseResult
from gpugate.results.reason import ReasonCode
from gpugate.results.summary import sm_clock_mhz, summarize
from gpugate.results.verdict import Outcome

RECORDED, BASE = "what was recorded", "the base"


def explain(result: CaseResult, profile: StepProfile | None) -> Autopsy | None:
    """Compares the optimized side with its record, whose profile is `profile`; without a record, with the reference of
    this run. None for a case without times."""
    now, then, against = optimized_side(result), recorded_side(result, profile), RECORDED
    if then is None:
        then, against = reference_side(result), f"{result.compared_with}, which it is compared with"
    return autopsy(then, now, against) if then and now else None


def explain_duet(found: Measurement, swapped: bool) -> Autopsy:
    """Compares the head's side of a duet with the base's. Raises ValueError for a measurement without pairs."""
    summary = summarize(found)
    reference = State(
        step_ms=summary.reference_ms.median,
        counters=found.reference_counters,
        profile=found.reference_profile,
        sm_clock_mhz=sm_clock_mhz(found.pairs),
    )
    optimized = State(
        step_ms=summary.optimized_ms.median,
        counters=found.optimized_counters,
        profile=found.optimized_profile,
        sm_clock_mhz=sm_clock_mhz(found.pairs),
    )
    return autopsy(optimized, reference, BASE) if swapped else autopsy(reference, optimized, BASE)


def optimized_side(result: CaseResult) -> State | None:
    """The optimized side as this run measured it; None where it has no times."""
    found = result.measurement
    if found is None or not found.pairs:
        return None
    summary = summarize(found)
    return State(
        step_ms=summary.optimized_ms.median,
        counters=found.optimized_counters,
        profile=found.optimized_profile,
        sm_clock_mhz=sm_clock_mhz(found.pairs),
        steps_per_block=statistics.median(one.optimized_steps_per_block for one in found.instances),
        not_engaged=found.not_engaged,
        wrong=_find_wrong_output(result),
        disproved=next((f"{one.name}: {one.problem}" for one in found.proofs if one.problem), None),
        mismatch=found.mismatch if _is_off(result) or _is_stale(found.mismatch) else None,
        output_error=_find_largest_error(found, result),
        reference_ms=summary.reference_ms.median,
        reference_counters=found.reference_counters,
    )


def reference_side(result: CaseResult) -> State | None:
    """The side that it is compared with, in the same run."""
    found = result.measurement
    if found is None or not found.pairs:
        return None
    return State(
        step_ms=summarize(found).reference_ms.median,
        counters=found.reference_counters,
        profile=found.reference_profile,
        sm_clock_mhz=sm_clock_mhz(found.pairs),
        steps_per_block=statistics.median(one.reference_steps_per_block for one in found.instances),
    )


def recorded_side(result: CaseResult, profile: StepProfile | None) -> State | None:
    """The optimized side as its baseline has it, with the profile that is stored beside; None without a baseline."""
    then = result.remembered
    if then is None:
        return None
    times = then.current
    return State(
        times.optimized_ms,
        then.optimized_counters,
        profile,
        times.sm_clock_mhz,
        times.optimized_steps_per_block,
        reference_ms=times.reference_ms,
    )


def _find_largest_error(found: Measurement, result: CaseResult) -> float | None:
    if not _is_off(result):
        return None
    error = max((one.relative_l2 for one in found.differences), default=math.inf)
    return error if math.isfinite(error) else None


def _is_off(result: CaseResult) -> bool:
    """True where the size of an error decided, and fresh inputs show it: an output of timed steps alone is remembered,
    or its step was left out, however small the error is."""
    differ = [one.reasons[0] for one in result.verdicts if one.code is ReasonCode.OUTPUTS_DIFFER]
    wrong = [reason for reason in differ if "measure" in reason.facts]
    return any(not str(reason.facts["when"]).endswith("timed steps") for reason in wrong)


def _is_stale(mismatch: Mismatch | None) -> bool:
    return mismatch is not None and mismatch.from_step_before is not None and mismatch.from_step_before < LIKE_BEFORE


def _find_wrong_output(result: CaseResult) -> str | None:
    """The reason for which outputs are wrong; None where they are right, and where only a proof failed."""
    wrong = (one for one in result.verdicts if one.outcome is Outcome.WRONG)
    return next((one.reason for one in wrong if one.code is not ReasonCode.DISPROVED), None)

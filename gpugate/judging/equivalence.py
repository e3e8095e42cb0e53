"""The verdict about outputs: every output is within the tolerance, and every proof holds. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpugate.judging.next_step import next_step
from gpugate.measurement.record import Difference, Measurement, ProofResult, StepChecks
from gpugate.measurement.settings import REMEMBERS
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.verdict import NextStep, Outcome, Verdict
from gpugate.units import date_of
from gpugate.workload import Tolerance

LEFT_OUT = 0.5  # of a step's work: one step of three is a third, and a join may cost as much as a step


def judge_equivalence(measurement: Measurement, allowed: Tolerance) -> Verdict:
    """Every compared output must be within the tolerance, NaN never is, and every proof must hold."""
    case_id = measurement.case_id
    if not measurement.differences:
        return Verdict("equivalence", case_id, reasons=(Reason(ReasonCode.NO_OUTPUT_COMPARED),))
    worst_difference = max(measurement.differences, key=lambda d: (d.problem is not None, d.relative_l2))
    numbers = {
        "relative_l2": _finite(worst_difference.relative_l2),
        "max_error": _finite(max(d.max_error for d in measurement.differences)),
        "compared_outputs": float(len(measurement.differences)),
    }
    off = [problem for d in measurement.differences if (problem := _output_problem(d, allowed))]
    checks, proofs = measurement.step_checks, measurement.proofs
    found = _step_problems(checks) if checks else []
    named = checks is not None and checks.resembles != "unknown"
    problems = [*found, *off] if named else [*off, *found]  # a cause says more than an error
    problems += [
        Reason(ReasonCode.DISPROVED, {"proof": proof.name, "problem": proof.problem})
        for proof in proofs
        if proof.problem
    ]
    if problems:
        comparable = off and all(d.problem is None for d in measurement.differences)
        step = NextStep.TRACE_BOTH_SIDES if comparable else next_step(Outcome.WRONG)
        return Verdict("equivalence", case_id, Outcome.WRONG, (problems[0],), step, numbers)
    good = _agreements(measurement.differences, allowed)
    good += [Reason(ReasonCode.STEPS_AGREE, {"steps": checks.steps})] if checks else []
    good += [_proven(proof) for proof in proofs]
    return Verdict("equivalence", case_id, Outcome.PASS, tuple(good), numbers=numbers)


def _agreements(found: Sequence[Difference], allowed: Tolerance) -> list[Reason]:
    """A reason for the numbers, for the integers, and for the values that are not finite, as far as there are any."""
    exact = [one for one in found if _is_exact(one, allowed)]
    good = []
    if len(exact) < len(found):
        good.append(Reason(ReasonCode.OUTPUTS_AGREE, {"allowed": allowed.relative_l2}))
    if exact:
        good.append(Reason(ReasonCode.VALUES_EQUAL, _count_unequal(exact)))
    not_finite = sum(one.not_finite for one in found)
    return good + ([Reason(ReasonCode.SAME_NOT_FINITE, {"values": not_finite})] if not_finite else [])


def _is_exact(found: Difference, allowed: Tolerance) -> bool:
    """True for integers and booleans that are judged by the share of equal values."""
    return found.unequal is not None and allowed.equal_share is not None


def _count_unequal(found: Sequence[Difference]) -> dict[str, Fact]:
    return {"unequal": sum(one.unequal or 0 for one in found), "values": sum(one.values for one in found)}


def _proven(proof: ProofResult) -> Reason:
    facts = {"proof": proof.name, "words": proof.words}
    if proof.proved_at is None:
        return Reason(ReasonCode.PROVEN, facts)
    return Reason(ReasonCode.PROVEN_BEFORE, {**facts, "proved_on": date_of(proof.proved_at)})


def _step_problems(checks: StepChecks) -> list[Reason]:
    """A reason for each finding of the checking pass: wrong outputs, steps left out, and remembered outputs."""
    problems = []
    if checks.wrong:
        count = {"wrong": checks.wrong, "steps": checks.steps, "first_wrong": checks.first_wrong or 0}
        what = {"problem": checks.problem} if checks.problem else {"resembles": checks.resembles}
        problems.append(Reason(ReasonCode.STEPS_WRONG, {**count, **what}))
    if checks.block_share is not None and checks.block_share < LEFT_OUT:
        problems.append(Reason(ReasonCode.STEPS_LEFT_OUT, {"share": checks.block_share}))
    if checks.new_input_ratio is not None and checks.new_input_ratio > REMEMBERS:
        problems.append(Reason(ReasonCode.OUTPUTS_REMEMBERED, {"times": checks.new_input_ratio}))
    return problems


def _output_problem(found: Difference, allowed: Tolerance) -> Reason | None:
    if found.problem is not None:
        return Reason(ReasonCode.OUTPUT_NOT_COMPARABLE, {"when": found.when, "problem": found.problem})
    if found.unequal is not None and allowed.equal_share is not None:
        unequal = found.unequal > (1 - allowed.equal_share) * found.values
        facts = {"when": _place(found), **_count_unequal([found])}
        return Reason(ReasonCode.VALUES_UNEQUAL, facts) if unequal else None
    error, largest, agreement = found.relative_l2, found.max_error, found.top1_agreement
    if not error <= allowed.relative_l2:
        return _off(ReasonCode.RELATIVE_ERROR_TOO_LARGE, found, error, allowed.relative_l2)
    if not largest <= allowed.max_error:
        return _off(ReasonCode.LARGEST_ERROR_TOO_LARGE, found, largest, allowed.max_error)
    if agreement is not None and agreement < allowed.top1_agreement:
        return _off(ReasonCode.TOP1_AGREEMENT_TOO_LOW, found, agreement, allowed.top1_agreement)
    return None


def _off(code: ReasonCode, difference: Difference, found: float, allowed: float) -> Reason:
    return Reason(code, {"when": _place(difference), "found": found, "allowed": allowed})


def _place(found: Difference) -> str:
    return f"{found.part} of {found.when}" if found.part else found.when


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

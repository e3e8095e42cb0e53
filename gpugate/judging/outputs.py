"""Agreement of the outputs: every output is within the tolerance, and every proof holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpugate.judging.machine_state import MOSTLY
from gpugate.measurement.record import Difference, Measurement, StepChecks
from gpugate.measurement.settings import REMEMBERS
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.units import date_of
from gpugate.workload import Tolerance


@dataclass(frozen=True)
class Outputs:
    """The compared outputs of one process: what is wrong with them, the worst first, else what agrees."""

    problems: tuple[Reason, ...]
    agreements: tuple[Reason, ...]
    numbers: Mapping[str, float]


def compare_outputs(measurement: Measurement, allowed: Tolerance) -> Outputs:
    """Every compared output must be within the tolerance, NaN never is, and every proof must hold."""
    found, checks = measurement.differences, measurement.step_checks
    if not found:
        return Outputs((), (), {})
    off = [problem for one in found if (problem := _output_problem(one, allowed))]
    of_steps = _step_problems(checks) if checks else []
    named = checks is not None and checks.resembles != "unknown"
    problems = [*of_steps, *off] if named else [*off, *of_steps]  # a cause says more than an error
    problems += [
        Reason(ReasonCode.DISPROVED, {"proof": proof.name, "problem": proof.problem})
        for proof in measurement.proofs
        if proof.problem
    ]
    facts = _agreements(found, allowed) + ([{"steps": checks.steps}] if checks else [])
    agreements = [Reason(ReasonCode.OUTPUTS_AGREE, one) for one in facts]
    for proof in measurement.proofs:
        proved_on = {"proved_on": date_of(proof.proved_at)} if proof.proved_at else {}
        agreements.append(Reason(ReasonCode.PROVEN, {"proof": proof.name, "words": proof.words, **proved_on}))
    return Outputs(
        problems=tuple(problems),
        agreements=() if problems else tuple(agreements),
        numbers={
            "relative_l2": max(one.relative_l2 for one in found),
            "max_error": max(one.max_error for one in found),
            "compared_outputs": float(len(found)),
        },
    )


def _agreements(found: Sequence[Difference], allowed: Tolerance) -> list[dict[str, Fact]]:
    """The facts about the numbers, the integers, and the values that are not finite, as far as there are any."""
    exact = [one for one in found if one.unequal is not None and allowed.equal_share is not None]
    good: list[dict[str, Fact]] = [{"allowed": allowed.relative_l2}] if len(exact) < len(found) else []
    good += [_count_unequal(exact)] if exact else []
    not_finite = sum(one.not_finite for one in found)
    return good + ([{"not_finite": not_finite}] if not_finite else [])


def _count_unequal(found: Sequence[Difference]) -> dict[str, Fact]:
    return {"unequal": sum(one.unequal or 0 for one in found), "values": sum(one.values for one in found)}


def _step_problems(checks: StepChecks) -> list[Reason]:
    """A reason for each finding of the checking pass: wrong outputs, steps left out, and remembered outputs."""
    problems = []
    if checks.wrong:
        count = {"wrong": checks.wrong, "steps": checks.steps, "first_wrong": checks.first_wrong or 0}
        what = {"problem": checks.problem} if checks.problem else {"resembles": checks.resembles}
        problems.append(Reason(ReasonCode.STEPS_WRONG, {**count, **what}))
    if checks.block_share is not None and checks.block_share < MOSTLY:
        problems.append(Reason(ReasonCode.STEPS_LEFT_OUT, {"share": checks.block_share}))
    if checks.new_input_ratio is not None and checks.new_input_ratio > REMEMBERS:
        problems.append(Reason(ReasonCode.OUTPUTS_REMEMBERED, {"times": checks.new_input_ratio}))
    return problems


def _output_problem(found: Difference, allowed: Tolerance) -> Reason | None:
    when = f"{found.part} of {found.when}" if found.part else found.when
    if found.problem is not None:
        return Reason(ReasonCode.OUTPUTS_DIFFER, {"when": found.when, "problem": found.problem})
    if found.unequal is not None and allowed.equal_share is not None:
        unequal = found.unequal > (1 - allowed.equal_share) * found.values
        return Reason(ReasonCode.OUTPUTS_DIFFER, {"when": when, **_count_unequal([found])}) if unequal else None
    agreement = 1.0 if found.top1_agreement is None else found.top1_agreement
    for measure, value, limit, good in (
        ("relative_l2", found.relative_l2, allowed.relative_l2, found.relative_l2 <= allowed.relative_l2),
        ("max_error", found.max_error, allowed.max_error, found.max_error <= allowed.max_error),
        ("top1_agreement", agreement, allowed.top1_agreement, agreement >= allowed.top1_agreement),
    ):
        if not good:  # NaN is never good
            facts: dict[str, Fact] = {"when": when, "measure": measure, "found": value, "limit": limit}
            return Reason(ReasonCode.OUTPUTS_DIFFER, facts)
    return None

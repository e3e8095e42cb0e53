"""The verdict about outputs: every output is within the tolerance, and every proof holds. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpugate import units
from gpugate.judging.next_step import next_step
from gpugate.measurement.record import Difference, Measurement, Resemblance, StepChecks
from gpugate.measurement.settings import REMEMBERS
from gpugate.results.verdict import NextStep, Outcome, Verdict
from gpugate.workload import Tolerance

LEFT_OUT = 0.5  # of a step's work: one step of three is a third, and a join may cost as much as a step


def judge_equivalence(measurement: Measurement, allowed: Tolerance) -> Verdict:
    """Every compared output must be within the tolerance, NaN never is, and every proof must hold."""
    case_id = measurement.case_id
    if not measurement.differences:
        return Verdict("equivalence", case_id, reason="no output was compared")
    worst_difference = max(measurement.differences, key=lambda d: (d.problem is not None, d.relative_l2))
    numbers = {
        "relative_l2": _finite(worst_difference.relative_l2),
        "max_error": _finite(max(d.max_error for d in measurement.differences)),
        "compared_outputs": float(len(measurement.differences)),
    }
    off = [problem for d in measurement.differences if (problem := _output_problem(d, allowed))]
    found, checks = step_problems(measurement.step_checks), measurement.step_checks
    named = checks is not None and checks.resembles != "unknown"
    problems = [*found, *off] if named else [*off, *found]  # a cause says more than an error
    problems += [f"{proof.name}: {proof.problem}" for proof in measurement.proofs if proof.problem]
    if problems:
        comparable = off and all(d.problem is None for d in measurement.differences)
        step = NextStep.TRACE_BOTH_SIDES if comparable else next_step(Outcome.WRONG)
        return Verdict("equivalence", case_id, Outcome.WRONG, problems[0], step, numbers)
    reason = (
        f"relative L2 error {worst_difference.relative_l2:.1e} of at most {allowed.relative_l2:.1e} "
        f"over {len(measurement.differences)} outputs"
    )
    if measurement.step_checks is not None:
        reason += f", and the sums of {measurement.step_checks.steps} further steps agree"
    reason = "; ".join([reason, *(f"{proof.name}: {proof.words}" for proof in measurement.proofs)])
    return Verdict("equivalence", case_id, Outcome.PASS, reason, numbers=numbers)


_RESEMBLES: Mapping[Resemblance, str] = {
    "": "",
    "zeros": "zeros",
    "not finite": "NaN or infinity",
    "step before": "the output of the step before",
    "other input": "the output of another input: the side remembers outputs, and the inputs' contents changed places",
    "unreadable": "no output that can be compared",
    "unknown": "another output than the baseline's",
}


def step_problems(checks: StepChecks | None) -> list[str]:
    """A sentence for each finding of the checking pass: wrong outputs, remembered ones, and steps left out."""
    if checks is None:
        return []
    problems = []
    if checks.wrong:
        found = checks.problem or f"it returned {_RESEMBLES[checks.resembles]}"
        which = f"{checks.wrong} of {checks.steps} steps are wrong, the first is step {checks.first_wrong}"
        problems.append(f"{which}: {found}")
    if checks.block_share is not None and checks.block_share < LEFT_OUT:
        share = units.percent(checks.block_share)
        problems.append(f"a step in a block does {share} of the work of a step by itself: the side leaves steps out")
    if checks.new_input_ratio is not None and checks.new_input_ratio > REMEMBERS:
        times = f"{checks.new_input_ratio:.3g} times as long on a new input as on the same input again"
        problems.append(f"a step takes {times}: the side remembers outputs")
    return problems


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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

"""Judging outputs: is every one within the tolerance, and does every proof hold?"""

from __future__ import annotations

import math

from gpugate.measurement.record import Difference, Measurement
from gpugate.next_steps import next_step, tolerance_step
from gpugate.verdict import Outcome, Verdict
from gpugate.workload import Tolerance


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
    problems = [*off, *(f"{proof.name}: {proof.problem}" for proof in measurement.proofs if proof.problem)]
    if problems:
        comparable = off and all(d.problem is None for d in measurement.differences)
        step = tolerance_step(case_id) if comparable else next_step(Outcome.WRONG, case_id)
        return Verdict("equivalence", case_id, Outcome.WRONG, problems[0], step, numbers)
    reason = (
        f"relative L2 error {worst_difference.relative_l2:.1e} of at most {allowed.relative_l2:.1e} "
        f"over {len(measurement.differences)} outputs"
    )
    reason = "; ".join([reason, *(f"{proof.name}: {proof.words}" for proof in measurement.proofs)])
    return Verdict("equivalence", case_id, Outcome.PASS, reason, numbers=numbers)


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

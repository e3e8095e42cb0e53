"""Runs of an optimization's proofs: tests of facts beyond the outputs of its steps."""

from __future__ import annotations

from collections.abc import Callable

from gpugate.errors import DisprovedError
from gpugate.measurement.record import ProofResult
from gpugate.measurement.sides import blame, release
from gpugate.measurement.time_limit import BUILD_SHARE
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.workload import Case, Context, Proof


def run_proofs(case: Case, context: Context, report: Callable[[str], None]) -> list[ProofResult]:
    """Runs every proof of the optimization, in order, each with the suite's default flags, and returns the results.

    Raises SideError, naming the optimization and the proof, when a proof cannot be run at all.
    """
    found = []
    for proof in case.optimization.proofs:
        report(proof.name)
        found.append(_run_proof(case, context, proof))
        release(context.device)
    return found


def _run_proof(case: Case, context: Context, proof: Proof) -> ProofResult:
    TorchFlags().without_tf32().apply()  # outputs are compared, and nothing is timed
    with blame(case.optimization.name, f"showing {proof.name}", BUILD_SHARE):
        try:
            return ProofResult(proof.name, proof.show(context))
        except DisprovedError as error:
            return ProofResult(proof.name, problem=str(error))

"""Runs of an optimization's proofs: tests of facts beyond the outputs of its steps."""

from __future__ import annotations

from collections.abc import Callable

from gpugate.errors import DisprovedError
from gpugate.measurement.record import Shown
from gpugate.measurement.sides import blamed_on, release
from gpugate.measurement.time_limit import BUILD_SHARE
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.workload import Case, Context, Proof


def shown(case: Case, context: Context, tell: Callable[[str], None]) -> list[Shown]:
    """Runs every proof of the optimization, in order, each with the suite's default flags, and returns the results.

    Raises SideError, naming the optimization and the proof, when a proof cannot be run at all.
    """
    found = []
    for proof in case.optimization.proofs:
        tell(proof.name)
        found.append(_said(case, context, proof))
        release(context.device)
    return found


def _said(case: Case, context: Context, proof: Proof) -> Shown:
    TorchFlags().apply()
    with blamed_on(case.optimization.name, f"showing {proof.name}", BUILD_SHARE):
        try:
            return Shown(proof.name, proof.show(context))
        except DisprovedError as error:
            return Shown(proof.name, problem=str(error))

"""One fresh process of trials, and one sentence about a process that ends early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpugate.session.run_child import run_pytest
from tools.trust.plan import Plan
from tools.trust.trials import TrustError


def run_worker(plan: Plan, pytest_words: Sequence[str]) -> None:
    """Runs the plan in a process of its own.

    Raises TrustError with the cause where the process ends early; the trials that it has written stay in its file.
    """
    ended = run_pytest("tools.trust.worker", pytest_words, plan)
    if ended.status == 0:
        return
    if not Path(plan.output).exists():  # before its first trial: the cause is that of the command
        raise TrustError(ended.cause("it"))
    raise TrustError(f"process {plan.process} of trials ended early, its trials are kept: {ended.cause('it')}")

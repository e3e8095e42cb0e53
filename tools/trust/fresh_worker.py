"""One fresh process of trials, and one sentence about a process that ends early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpugate.machine.children import run_module
from gpugate.store.codec import to_json
from tools.trust.plan import Plan
from tools.trust.trials import TrustError


def run_worker(plan: Plan, pytest_words: Sequence[str]) -> None:
    """Runs the plan in a process of its own.

    Raises TrustError with the cause where the process ends early; the trials that it has written stay in its file.
    """
    ended = run_module("tools.trust.worker", pytest_words, to_json(plan))
    if ended.status == 0:
        return
    if not Path(plan.output).exists():  # before its first trial: the cause is that of the command
        raise TrustError(ended.explain("it"))
    raise TrustError(f"process {plan.process} of trials ended early, its trials are kept: {ended.explain('it')}")

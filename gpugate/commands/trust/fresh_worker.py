"""One fresh process of trials, and one sentence about a process that ends early."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from gpugate.commands.trust.plan import Plan
from gpugate.errors import TrustError
from gpugate.session.child_process import module_command
from gpugate.session.run_child import Ended, run_child
from gpugate.store.codec import to_json

LAST_LINES = 8
_ERROR = "ERROR: "  # as pytest begins a usage error


def run_worker(plan: Plan, pytest_words: Sequence[str]) -> None:
    """Runs the plan in a process of its own.

    Raises TrustError with the cause where the process ends early; the trials that it has written stay in its file.
    """
    command = module_command("gpugate.commands.trust.worker", pytest_words)
    environment = {**os.environ, "PY_COLORS": "0"}
    ended = run_child(command, stdin=json.dumps(to_json(plan)).encode(), environment=environment)
    if ended.status == 0:
        return
    if not Path(plan.output).exists():  # before its first trial: the cause is that of the command
        raise TrustError(_cause(ended))
    raise TrustError(f"process {plan.process} of trials ended early, its trials are kept: {_cause(ended)}")


def _cause(ended: Ended) -> str:
    errors = [line for line in ended.output.splitlines() if line.startswith(_ERROR)]
    if errors:
        return errors[-1].removeprefix(_ERROR)
    return "\n".join([f"it {ended.reason}, after this output:", *ended.last_lines(LAST_LINES)])

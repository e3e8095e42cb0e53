"""Starts one worker, watches it, and says in one sentence why it ended early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from gpugate.commands.trust.plan import Plan
from gpugate.errors import TrustError
from gpugate.session.child_process import module_command
from gpugate.store.codec import to_json

POLL_S = 0.5
GRACE_S = 5.0  # to finish writing a file
LAST_LINES = 8
_ERROR = "ERROR: "  # as pytest begins a usage error


def run_worker(plan: Plan, pytest_words: Sequence[str], lock: int, watch: Callable[[], None]) -> None:
    """Runs the plan in a process of its own; `watch` is called twice a second meanwhile, `lock` is handed down.

    Raises TrustError, naming process and cause, when it ends early; what it has measured is in its file. It ends with
    this process, however that ends.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            module_command("gpugate.commands.trust.worker", pytest_words),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],
            env={**os.environ, "PY_COLORS": "0"},
        )
        try:
            _tell(process, plan)
            while process.poll() is None:
                time.sleep(POLL_S)
                watch()
        except BaseException:
            _end(process)
            raise
        if process.returncode:
            raise TrustError(_sentence(plan, process.returncode, log))


def _tell(process: subprocess.Popen[bytes], plan: Plan) -> None:
    with suppress(BrokenPipeError), process.stdin as stdin:  # type: ignore[union-attr]
        stdin.write(json.dumps(to_json(plan)).encode())


def _end(process: subprocess.Popen[bytes]) -> None:
    """No orphan goes on using the device."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()


def _sentence(plan: Plan, status: int, log: IO[bytes]) -> str:
    """Of a worker that had not begun its trials, the reason alone: it stands for the command."""
    cause = _cause(status, log)
    if not Path(plan.output).exists():
        return cause
    return f"process {plan.process} of trials ended early, what it has measured is kept: {cause}"


def _cause(status: int, log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    if errors:
        return errors[-1].replace("--perf-device", "--device")
    if status < 0:
        return f"{signal.Signals(-status).name} killed it"
    return "\n".join([f"pytest ended with status {status}; it said:", *lines[-LAST_LINES:]])

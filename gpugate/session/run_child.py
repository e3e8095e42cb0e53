"""One child process from its start to its end: nothing that it starts outlives it, and its end has a reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpugate.session.child_process import module_command
from gpugate.store.codec import to_json

GRACE_S = 5.0  # for an interrupted child to remove what is temporary
LAST_LINES = 8  # of the output, among which the cause of an end stands
ERROR = "ERROR: "  # as pytest begins a usage error


@dataclass(frozen=True)
class Ended:
    """A child that has ended.

    `status` is negative for a signal, and None where the child was killed at its time limit. `output` is that of both
    streams, `folder` the working folder.
    """

    status: int | None
    output: str
    folder: Path = Path()
    timeout_s: float | None = None

    @property
    def reason(self) -> str:
        """For example `ended with status 3`, `was killed by SIGSEGV` or `did not end within 60 s`."""
        if self.status is None:
            return f"did not end within {self.timeout_s:g} s"
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}"

    def last_lines(self, count: int) -> list[str]:
        """The last lines of the output that are not blank."""
        return [line.rstrip() for line in self.output.splitlines() if line.strip()][-count:]

    def cause(self, subject: str) -> str:
        """The last usage error of pytest in the output, else how the `subject` ended, with the last lines."""
        errors = [line.removeprefix(ERROR) for line in self.output.splitlines() if line.startswith(ERROR)]
        last = [f"{subject} {self.reason}, after this output:", *self.last_lines(LAST_LINES)]
        return errors[-1] if errors else "\n".join(last)


def run_child(
    command: Sequence[str],
    timeout_s: float | None = None,
    *,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    folder: Path = Path(),
    log_path: Path | None = None,
) -> Ended:
    """Runs a command of `gpugate.session.child_process` to its end, and kills it after `timeout_s`.

    The output goes to the file `log_path`, or to a temporary one. The environment is by default that of this process.
    Where this process is interrupted, so is the child, which has GRACE_S to end. Raises OSError for a command that
    cannot be started.
    """
    with log_path.open("w+b") if log_path else tempfile.TemporaryFile() as log:
        streams = {"stdin": subprocess.PIPE, "stdout": log, "stderr": subprocess.STDOUT}
        with start_child(command, env=environment, cwd=folder, **streams) as process:
            try:
                process.communicate(stdin, timeout_s)
                status = process.returncode
            except subprocess.TimeoutExpired:
                status = None
            except BaseException:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
                raise
        log.seek(0)
        return Ended(status, log.read().decode(errors="replace"), folder, timeout_s)


def run_pytest(
    module: str, words: Sequence[str], orders: object, folder: Path = Path(), timeout_s: float | None = None
) -> Ended:
    """Runs a module that runs pytest with the arguments `words`, and reads `orders`, a dataclass, from its stdin. It is
    killed after `timeout_s`."""
    environment = {**os.environ, "PY_COLORS": "0"}  # a usage error in colours would not be found
    stdin = json.dumps(to_json(orders)).encode()
    return run_child(module_command(module, words), timeout_s, stdin=stdin, environment=environment, folder=folder)


@contextmanager
def start_child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a command in a session of its own, which the Ctrl-C of a terminal does not reach. `options` are those of
    Popen. At the end of the block the command and the rest of its process group are killed."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        kill_group(process.pid)
        process.wait()


def kill_group(leader: int) -> None:
    """Kills the process group of a leader, which may have ended already."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)

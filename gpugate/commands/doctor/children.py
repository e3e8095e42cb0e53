"""Child processes for work that may hang, crash or spoil a CUDA context: the doctor itself never touches a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

import gpugate
from gpugate.errors import EnvironmentUnfitError, GpugateError, OptionError
from gpugate.session.child_process import program_command

ANSWER = "gpugate-answer "  # begins the line of the output that contains the answer
LAST_CHARACTERS = 200_000
# The package may run from a checkout: it comes last on the path, so that nothing beside it hides another module.
_START = "import sys; sys.path.append(sys.argv[1]); from gpugate.commands.doctor.child import main; main(sys.argv[2:])"
_HOME = str(Path(gpugate.__file__).parents[1])


class ChildError(GpugateError):
    """A child gave no answer. The message names the cause, without a next step."""


@dataclass(frozen=True)
class Ended:
    """A child that has ended: its exit status, negative for a signal, None for a child killed at its time limit."""

    status: int | None
    output: str
    folder: Path  # the child's working folder


class Children:
    """Starts children in temporary folders. At the end it removes the folders and kills the process groups still alive.

    Raises EnvironmentUnfitError where nothing temporary can be written.
    """

    def __init__(self) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="gpugate-doctor-", ignore_cleanup_errors=True)
        except OSError as error:
            raise EnvironmentUnfitError(f"no folder for what is temporary ({error.strerror}): set TMPDIR") from None
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._closed = False
        self.visible: str | None = None  # CUDA_VISIBLE_DEVICES of every child; None: unchanged from the doctor's

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()

    def ask(self, question: str, *arguments: str, timeout_s: float) -> Any:
        """Runs the function `question` of gpugate.commands.doctor.child in a child and returns its result as JSON.

        Raises ChildError where the child raises, dies or takes too long, and OptionError where it refuses an option.
        """
        ended = self.run(python(question, *arguments), timeout_s)
        answer = _answer(ended.output)
        if answer is None:
            raise ChildError(how_it_ended(ended, timeout_s))
        if "refused" in answer:
            raise OptionError(str(answer["refused"]))
        if "error" in answer:
            raise ChildError(str(answer["error"]))
        return answer["value"]

    def run(self, command: Sequence[str], timeout_s: float, own_home: bool = False) -> Ended:
        """Runs a program in a folder and a process group of its own. Raises ChildError where it cannot be started.

        With `own_home`, files that the program leaves in its home folder, as profilers do, are removed with its folder.
        """
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        log_path = folder / "output.log"
        environment = {**os.environ, "TMPDIR": str(folder), "CUDA_CACHE_DISABLE": "1"}
        if own_home:
            environment["HOME"] = str(folder)
        if self.visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.visible
        with log_path.open("wb") as log:
            process = self._start(command, folder, environment, log.fileno())
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self._end(process)
        with log_path.open(encoding="utf-8", errors="replace") as text:
            return Ended(status, text.read()[-LAST_CHARACTERS:], folder)

    def stop(self) -> None:
        """Kills every running child; no child can be started afterwards."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            self._end(process)

    def _start(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: int
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise ChildError("the doctor was interrupted")
            try:
                process = subprocess.Popen(
                    program_command(command),
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ChildError(f"{command[0]} cannot be started ({error.strerror})") from None
            self._running.add(process)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with self._lock:
            self._running.discard(process)


def python(question: str, *arguments: str) -> list[str]:
    """Returns the command that runs one function of gpugate.commands.doctor.child."""
    return [sys.executable, "-c", _START, _HOME, question, *arguments]


def how_it_ended(ended: Ended, timeout_s: float) -> str:
    """Returns text such as `it died of SIGSEGV`, with the last line of the child's output."""
    said = [line.strip() for line in ended.output.splitlines() if line.strip()]
    last = f" ({said[-1][:200]})" if said else ""
    if ended.status is None:
        return f"it did not end within {timeout_s:g} s{last}"
    if ended.status < 0:
        return f"it died of {signal.Signals(-ended.status).name}{last}"
    return f"it ended with status {ended.status}{last}"


def _answer(output: str) -> dict[str, Any] | None:
    lines = [line for line in output.splitlines() if line.startswith(ANSWER)]
    return dict(json.loads(lines[-1].removeprefix(ANSWER))) if lines else None

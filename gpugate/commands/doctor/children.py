"""Child processes for work that may hang, crash or spoil a CUDA context: the doctor itself never touches a GPU."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpugate
from gpugate.errors import EnvironmentUnfitError, GpugateError, OptionError
from gpugate.session.child_process import program_command
from gpugate.session.run_child import Ended, run_child

ANSWER = "gpugate-answer "  # begins the line of the output that contains the answer
# The package may run from a checkout: it comes last on the path, so that nothing beside it hides another module.
_START = "import sys; sys.path.append(sys.argv[1]); from gpugate.commands.doctor.child import main; main(sys.argv[2:])"
_HOME = str(Path(gpugate.__file__).parents[1])


class ChildError(GpugateError):
    """A child gave no answer. The message names the cause, without a next step."""


class Children:
    """Runs children in temporary folders, which are removed at the end.

    Raises EnvironmentUnfitError where nothing temporary can be written.
    """

    def __init__(self) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="gpugate-doctor-", ignore_cleanup_errors=True)
        except OSError as error:
            raise EnvironmentUnfitError(f"no folder for what is temporary ({error.strerror}): set TMPDIR") from None
        self.visible: str | None = None  # CUDA_VISIBLE_DEVICES of every child; None: unchanged from the doctor's

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def ask(self, question: str, *arguments: str, timeout_s: float) -> Any:
        """Runs the function `question` of gpugate.commands.doctor.child in a child and returns its result as JSON.

        Raises ChildError where the child raises, dies or takes too long, and OptionError where it refuses an option.
        """
        ended = self.run(python(question, *arguments), timeout_s)
        answer = _answer(ended.output)
        if answer is None:
            raise ChildError(describe_end(ended))
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
        environment = {**os.environ, "TMPDIR": str(folder), "CUDA_CACHE_DISABLE": "1"}
        if own_home:
            environment["HOME"] = str(folder)
        if self.visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.visible
        try:
            return run_child(program_command(command), timeout_s, environment=environment, folder=folder)
        except OSError as error:
            raise ChildError(f"{command[0]} cannot be started ({error.strerror})") from None


def python(question: str, *arguments: str) -> list[str]:
    """Returns the command that runs one function of gpugate.commands.doctor.child."""
    return [sys.executable, "-c", _START, _HOME, question, *arguments]


def describe_end(ended: Ended) -> str:
    """Returns text such as `it was killed by SIGSEGV`, with the last line of the child's output."""
    last = "".join(ended.last_lines(1)).strip()[:200]
    return f"it {ended.reason}" + (f" ({last})" if last else "")


def _answer(output: str) -> dict[str, Any] | None:
    lines = [line for line in output.splitlines() if line.startswith(ANSWER)]
    return dict(json.loads(lines[-1].removeprefix(ANSWER))) if lines else None

"""Python code in a process of its own, which begins with torch imported where the fixture `warm_children` is used."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from gpugate.machine import children

ROOT = Path(__file__).parents[2]


def run_code(code: str, *, status: int = 0, **environment: str) -> str:
    """Runs the code to its end, with these variables beside those of this process, and returns what it printed.

    Fails where it ends with another status.
    """
    ended = children.run_module(__name__, task=textwrap.dedent(code), environment=environment, folder=ROOT)
    assert ended.status == status, f"{ended.reason}: {ended.output}"
    return ended.output


def interpret(code: str) -> tuple[Any, ...]:
    """Runs the code where Triton's interpreter runs kernels on a CPU, and returns the messages that it sent.

    The interpreter is chosen before Triton is imported: in a process of its own.
    """
    ended = children.run_module(__name__, task=code, environment={"TRITON_INTERPRET": "1"}, folder=ROOT)
    assert ended.status == 0, ended.output
    return ended.messages


if __name__ == "__main__":
    exec(children.task, {"__name__": "__main__"})  # noqa: S102

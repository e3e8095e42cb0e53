"""Waiting for an event of another process or thread, never for a fixed time."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

HANGS_S = 300.0  # no event takes so long, however busy the machine is: the test then fails, because something hangs


def wait_until(true: Callable[[], object], seconds: float = HANGS_S) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def soon(run: Callable[[], object]) -> object:
    """Returns the result of `run`, or raises its error; fails where `run` takes too long."""
    with ThreadPoolExecutor(1, "watched") as watched:
        return watched.submit(run).result(HANGS_S)


def stop(pid: int) -> None:
    """Stops a process, and returns when it stands still, since a signal takes effect later."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T")


def started_once(begun: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts the time limit of a hanging program once the program has begun, so that a slow start does not count."""

    class Begun(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            wait_until(begun)

    monkeypatch.setattr(subprocess, "Popen", Begun)

"""No process outlives a run: children that outlive the `close()` of their side are named, and ended with daemonic ones.

Inductor's compile workers and the helpers of multiprocessing serve the whole run and stay: they end with this process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess

from gpugate.machine.processes import list_children

ENDING_S = 5.0  # for all of them together, from SIGTERM on
LONGEST_COMMAND = 80  # characters
CLOSING_S = 1.0  # for a process that ends because of `close()`
_named: set[int] = set()  # children that outlived their side


@contextmanager
def name_left_over(case_id: str, notes: set[str]) -> Iterator[None]:
    """Notes the processes that a case starts and that outlive its `close()`: they are ended with the run."""
    before = list_children()
    try:
        yield
    finally:
        until = time.monotonic() + CLOSING_S
        while (left := {pid: name for pid, name in list_children().items() if pid not in before}) and (
            time.monotonic() < until
        ):
            time.sleep(CLOSING_S / 20)
        _named.update(left)
        notes.update(
            f"{case_id}: process {pid} ({command[:LONGEST_COMMAND]}) outlived close(): end it there; this run ends it "
            "at its end"
            for pid, command in left.items()
        )


def _end_named() -> None:
    for number, seconds in ((signal.SIGTERM, ENDING_S), (signal.SIGKILL, ENDING_S)):
        until = time.monotonic() + seconds
        for pid in _named & list_children().keys():  # an id may belong to another process by now
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while _named & list_children().keys() and time.monotonic() < until:
            with suppress(RuntimeError):  # as in `_await`
                time.sleep(CLOSING_S / 20)
    _named.clear()


@contextmanager
def end_left_over() -> Iterator[None]:
    """Ends daemonic children, and those that outlived their side, at the end of the block.

    Python itself would wait for them without end when it exits. A worker process of a loader that is stopped does not
    answer SIGTERM.
    """
    try:
        yield
    finally:
        end_daemons()
        _end_named()


def end_daemons() -> None:
    """Ends the daemonic children of multiprocessing, the stubborn ones by SIGKILL."""
    # Others are waited for as whoever started them wants it.
    daemons = [child for child in multiprocessing.active_children() if child.daemon]
    for child in daemons:
        child.terminate()
    until = time.monotonic() + ENDING_S
    for child in daemons:
        _await(child, until)
    for child in daemons:
        if child.is_alive():
            child.kill()
    for child in daemons:
        _await(child, until + ENDING_S)  # one that hangs in a driver outlives even that


def _await(child: BaseProcess, until: float) -> None:
    """Waits for the child, at most until then. torch's signal handler raises once that a loader's worker was killed."""
    while child.is_alive() and time.monotonic() < until:
        with suppress(RuntimeError):
            child.join(max(0.0, until - time.monotonic()))

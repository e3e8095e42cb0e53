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


@contextmanager
def end_left_over() -> Iterator[None]:
    """Ends the children that would outlive the run, at the end of the block."""
    try:
        yield
    finally:
        end_children()


def end_children() -> None:
    """Ends the children that outlived their side, and daemonic ones, for which Python itself would wait without end.

    A worker process of a loader that is stopped does not answer SIGTERM, and one that hangs in a driver outlives even
    SIGKILL.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + ENDING_S
        for pid in _list_ending():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while _list_ending() and time.monotonic() < until:
            with suppress(RuntimeError):  # torch's signal handler raises once that a loader's worker was killed
                time.sleep(CLOSING_S / 20)
    _named.clear()


def _list_ending() -> set[int]:
    """The ids of children that are to end and still run; those of ended ones may belong to other processes."""
    daemons = {child.pid for child in multiprocessing.active_children() if child.daemon and child.pid is not None}
    return daemons | (_named & list_children().keys())

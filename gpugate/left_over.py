"""No process outlives a run: children that are to end with it and do not are killed."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess

ENDING_S = 5.0  # for all of them together, once they are told to end


@contextmanager
def none_left_over() -> Iterator[None]:
    """Ends daemonic children when it ends. Python itself would wait for them without end when it exits.

    A worker process of a loader that is stopped does not answer SIGTERM.
    """
    try:
        yield
    finally:
        end_daemons()


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
    """At most until then. That a loader's worker was killed torch raises once, by a signal handler, wherever we are."""
    while child.is_alive() and time.monotonic() < until:
        with suppress(RuntimeError):
            child.join(max(0.0, until - time.monotonic()))

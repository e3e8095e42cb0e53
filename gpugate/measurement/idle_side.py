"""Standing still: the worker processes of the side that is not timed are stopped.

Loaders work ahead. While one side is timed, the other side's workers would refill their queues on the same cores. A
wait for the end of the refill takes seconds where a batch does, and two versions of one loader with eight workers then
differed by 10 % at random. Workers that a signal stops need no wait; their side runs untimed steps first, until its
queues are in their steady state again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from contextlib import suppress
from functools import cache

from gpugate.machine.children import start_apart

# A stopped worker cannot see that this process was killed. The watcher does, by the end of its input, and resumes them.
_WATCHER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
for worker in {int(line) for line in sys.stdin}:
    try:
        os.kill(worker, signal.SIGCONT)
    except ProcessLookupError:
        pass
"""


def stop_workers(workers: Collection[int]) -> None:
    """Stops the workers, which stay alive. Call `resume_workers` before their side is used or closed.

    A worker is the id of a process or, as in kill(2), the negative id of a process group.
    """
    if workers:
        stream = _living_watcher().stdin
        assert stream is not None  # noqa: S101  # for mypy
        stream.writelines(f"{worker}\n".encode() for worker in workers)
        stream.flush()
    _signal(workers, signal.SIGSTOP)


def resume_workers(workers: Collection[int]) -> None:
    _signal(workers, signal.SIGCONT)


def _signal(workers: Collection[int], number: signal.Signals) -> None:
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, number)


def _living_watcher() -> subprocess.Popen[bytes]:
    """The watcher, started again where something ended it, such as a clean-up of all children."""
    watcher = _start_watcher(os.getpid())
    if watcher.poll() is None:
        return watcher
    _start_watcher.cache_clear()
    return _start_watcher(os.getpid())


@cache
def _start_watcher(pid: int) -> subprocess.Popen[bytes]:
    """The watcher of the process `pid`: a forked child starts one of its own."""
    command, none = [sys.executable, "-I", "-S", "-c", _WATCHER], subprocess.DEVNULL
    return start_apart(command, stdin=subprocess.PIPE, stdout=none, stderr=none)

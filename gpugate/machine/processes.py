"""The processes below this one, as Linux lists them in /proc, and the end of a run: no process outlives it.

Children that outlive the `close()` of their side are named, and ended with daemonic ones. SIGTERM and SIGHUP end a run
as Ctrl-C does: a night that a scheduler ends keeps its results.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import process as process_pools
from concurrent.futures import thread as thread_pools
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

FORK_SERVER = "multiprocessing.forkserver"
# Inductor's compile workers and the helpers of multiprocessing serve the whole run, not one side.
HELPERS = (
    "torch/_inductor/compile_worker",
    "multiprocessing.resource_tracker",
    FORK_SERVER,
    "torch_shm_manager",
)

ENDING_S = 5.0  # for all of them together
CLOSING_S = 1.0  # for a process that ends because of `close()`
ENDS_A_RUN = (signal.SIGTERM, signal.SIGHUP)  # beside SIGINT
LONGEST_COMMAND = 80  # characters
_named: set[int] = set()  # children that outlived their side


def list_children() -> dict[int, str]:
    """The command of every child of this process that has not ended, by its id, without HELPERS."""
    found = _read_descendants()
    return {pid: command for pid, (parent, command) in found.items() if parent == os.getpid() and not _helps(command)}


def list_descendants(helpers: bool = False) -> set[int]:
    """The ids of all processes below this one that have not ended, without HELPERS unless `helpers`.

    A process that a fork server forked keeps the server's command and is no helper: it works.
    """
    found = _read_descendants()
    if helpers:
        return {*found}
    servers = {pid for pid, (_, command) in found.items() if FORK_SERVER in command}
    return {pid for pid, (parent, command) in found.items() if parent in servers or not _helps(command)}


def is_running(pid: int) -> bool:
    """False for a process that has ended, also where its parent has not reaped it."""
    return _read_parent(pid) is not None


def cpu_time_ns(pid: int) -> int:
    """Reads the user and system CPU time of a process, all threads together. Raises OSError for one that was reaped."""
    return time.clock_gettime_ns((~pid << 3) | 2)  # Linux's CPU clock of another process: CPUCLOCK_SCHED of ~pid


def worker_cpu_ns(workers: Collection[int]) -> int:
    """Sums the CPU time of running worker processes, and of all child processes that have ended, in nanoseconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total_ns = round(1e9 * (ended.ru_utime + ended.ru_stime))
    for worker in workers:
        with suppress(OSError):  # it has ended since
            total_ns += cpu_time_ns(worker)
    return total_ns


@contextmanager
def name_left_over(case_id: str, notes: set[str]) -> Iterator[None]:
    """Notes the processes that a case starts and that outlive its `close()`: they are ended with the run.

    A thread of a case that is no daemon is noted, too: without a word, pytest would wait for it without end.
    """
    before, threads = list_children(), _list_threads()
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
        for thread in _list_threads() - threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                step = "end it there, or make it a daemon; pytest ends when it has ended"
                notes.add(f"{case_id}: thread {thread.name} outlived close(): {step}")


def _list_threads() -> set[threading.Thread]:
    """The threads for which Python waits at its end, without those of executors, which Python itself ends."""
    of_processes = getattr(process_pools, "_threads_wakeups", ())
    ended_by_python = {*getattr(thread_pools, "_threads_queues", ()), *of_processes}
    return {one for one in threading.enumerate() if not one.daemon and one not in ended_by_python}


def end_children() -> None:
    """Kills the children that outlived their side, and daemonic ones, for which Python itself would wait without end: a
    stopped worker of a loader does not answer SIGTERM. One that hangs in a driver outlives even this."""
    for pid in _list_ending():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + ENDING_S
    while _list_ending() and time.monotonic() < until:
        with suppress(RuntimeError):  # torch's signal handler raises once that a loader's worker was killed
            time.sleep(CLOSING_S / 20)
    _named.clear()


def _list_ending() -> set[int]:
    """The ids of children that are to end and still run; those of ended ones may belong to other processes."""
    daemons = {child.pid for child in multiprocessing.active_children() if child.daemon and child.pid is not None}
    return daemons | (_named & list_children().keys())


def _read_descendants() -> dict[int, tuple[int, str]]:
    """The parent and the command of every process below this one that has not ended, by its id.

    A process without children, as most are, costs microseconds; reading all processes costs milliseconds.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {}
    read = {int(folder.name): _read_parent(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")}
    parents, below = {pid: parent for pid, parent in read.items() if parent is not None}, {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    found = {}
    for pid in below - {os.getpid()}:
        with suppress(OSError):  # one that ends meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            found[pid] = parents[pid], command
    return found


def _read_parent(pid: int) -> int | None:
    """None for a process that has ended."""
    with suppress(OSError, ValueError):  # one that ends meanwhile
        state, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
        if state not in (b"X", b"Z"):
            return int(parent)
    return None


def _helps(command: str) -> bool:
    return any(word in command for word in HELPERS)


@contextmanager
def treat_termination_as_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread; in another thread nothing changes.

    An ignored signal, as by `nohup`, stays ignored, and a forked child ends by the signal.
    """
    own = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True  # pytest then names the line that was interrupted
        if os.getpid() == own:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    is_main = threading.current_thread() is threading.main_thread()
    heeded = [number for number in ENDS_A_RUN if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    # None: whoever embeds Python handles it, which cannot be put back.
    before = {number: signal.signal(number, handle) or signal.SIG_DFL for number in heeded}
    try:
        yield
    finally:
        for number, replaced in before.items():
            signal.signal(number, replaced)

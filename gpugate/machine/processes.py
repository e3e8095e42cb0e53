"""The processes below this one, as Linux lists them in /proc."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from time import clock_gettime_ns

FORK_SERVER = "multiprocessing.forkserver"
# Inductor's compile workers and the helpers of multiprocessing serve the whole run, not one side.
HELPERS = (
    "torch/_inductor/compile_worker",
    "multiprocessing.resource_tracker",
    FORK_SERVER,
    "torch_shm_manager",
)


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


def cpu_time_ns(pid: int) -> int:
    """Reads the user and system CPU time of a process, all threads together. Raises OSError for one that has ended."""
    return clock_gettime_ns((~pid << 3) | 2)  # Linux's CPU clock of another process: CPUCLOCK_SCHED of ~pid


def worker_cpu_ns(workers: Collection[int]) -> int:
    """Sums the CPU time of running worker processes, and of all child processes that have ended, in nanoseconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total_ns = round(1e9 * (ended.ru_utime + ended.ru_stime))
    for worker in workers:
        with suppress(OSError):  # it has ended since
            total_ns += cpu_time_ns(worker)
    return total_ns


def ended_children_cpu_ns(workers: Collection[int]) -> int:
    """Sums the CPU time of the ended children of running worker processes, such as compilers that a compile worker
    started, in nanoseconds. Linux counts it in ticks."""
    ticks = 0
    for worker in workers:
        with suppress(OSError):  # it has ended since
            words = Path(f"/proc/{worker}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += int(words[13]) + int(words[14])  # cutime and cstime of proc_pid_stat(5)
    return 10**9 * ticks // os.sysconf("SC_CLK_TCK")


def _read_descendants() -> dict[int, tuple[int, str]]:
    """The parent and the command of every process below this one that has not ended, by its id.

    A process without children, as most are, costs microseconds; reading all processes costs milliseconds.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {}
    parents, below = _read_parents(), {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    found = {}
    for pid in below - {os.getpid()}:
        with suppress(OSError):  # one that ends meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            found[pid] = parents[pid], command
    return found


def _read_parents() -> dict[int, int]:
    """The parent of every process that has not ended."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):  # one that ends meanwhile
            state, parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state not in (b"X", b"Z"):
                found[int(folder.name)] = int(parent)
    return found


def _helps(command: str) -> bool:
    return any(word in command for word in HELPERS)

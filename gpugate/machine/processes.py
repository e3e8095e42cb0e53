"""The processes below this one, as Linux lists them in /proc."""

from __future__ import annotations

import os
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
    found = _read_all()
    return {pid: command for pid, (parent, command) in found.items() if parent == os.getpid() and not _helps(command)}


def list_descendants() -> set[int]:
    """The ids of all processes below this one that have not ended, without HELPERS.

    A process that a fork server forked keeps the server's command and is no helper: it works.
    """
    found, below = _read_all(), {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in below} - below:
        below |= more
    below -= {os.getpid()}
    servers = {pid for pid in below if FORK_SERVER in found[pid][1]}
    return {pid for pid in below if found[pid][0] in servers or not _helps(found[pid][1])}


def cpu_time_ns(pid: int) -> int:
    """Reads the user and system CPU time of a process, all threads together. Raises OSError for one that has ended."""
    return clock_gettime_ns((~pid << 3) | 2)  # Linux's CPU clock of another process: CPUCLOCK_SCHED of ~pid


def _read_all() -> dict[int, tuple[int, str]]:
    """The parent and the command of every process that has not ended, by its id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):  # one that ends meanwhile
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "XZ":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found[int(folder.name)] = int(parent), command
    return found


def _helps(command: str) -> bool:
    return any(word in command for word in HELPERS)

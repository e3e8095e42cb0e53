"""Run as a program, `python apart.py COMMAND...`: becomes COMMAND, which then sees no other process's environment.

nsys reads /proc/PID/environ of every process that it may look into, and writes them all into its report: also those of
the CI job that has called us, whose tokens no allow-list of ours can take away. The kernel refuses that to a process
with fewer capabilities than the other one has, and across user namespaces.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWUSER = 0x10000000
PR_CAPBSET_DROP = 24
CAP_SETPCAP, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 8, 19, 21, 38


def command_apart(command: Sequence[str]) -> list[str]:
    """`command`, run by this program."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), *command]


def stand_apart() -> None:
    """As well as this machine lets us; what is read all the same is looked for in every export."""
    kernel = ctypes.CDLL(None)
    if os.geteuid() == 0:
        # With any of these a process may read everyone's memory. SETPCAP last: it is what allows to drop. All of it
        # takes effect when the command is executed.
        given_up = (CAP_SYS_PTRACE, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SETPCAP)
        if all(kernel.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0 for capability in given_up):
            return
    user, group = os.geteuid(), os.getegid()
    if kernel.unshare(CLONE_NEWUSER) == 0:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


if __name__ == "__main__":
    stand_apart()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 there is no shell in between

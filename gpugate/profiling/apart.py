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
REFUSED = 77  # an exit status that nothing else has
CAP_SETPCAP, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 8, 19, 21, 38


def command_apart(command: Sequence[str]) -> list[str]:
    """`command`, run by this program."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), *command]


def stands_apart() -> bool:
    """Whether what `command_apart` runs is refused this process's environment; else it may read that of others too."""
    import subprocess  # the program that this module is too needs none

    look = f"try: open({f'/proc/{os.getpid()}/environ'!r}, 'rb').read()\nexcept OSError: raise SystemExit({REFUSED})"
    command = command_apart([sys.executable, "-I", "-S", "-c", look])
    return subprocess.run(command, capture_output=True, check=False).returncode == REFUSED


def stand_apart() -> None:
    """As well as this machine lets us; what is read all the same is looked for in every export."""
    kernel = ctypes.CDLL(None)
    if os.geteuid() == 0:
        # With any of these a process may read everyone's memory. SETPCAP last: it is what allows to drop. All of it
        # takes effect when the command is executed.
        given_up = (CAP_SYS_PTRACE, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SETPCAP)
        if all(kernel.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0 for capability in given_up):
            return
    # Some machines allow the namespace and no names in it, and there is no way back: a child tries first.
    child = os.fork()
    if child == 0:
        os._exit(not _in_a_namespace(kernel))
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        _in_a_namespace(kernel)


def _in_a_namespace(kernel: ctypes.CDLL) -> bool:
    user, group = os.geteuid(), os.getegid()
    if kernel.unshare(CLONE_NEWUSER) != 0:
        return False
    names = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    try:
        for name, text in names.items():
            Path("/proc/self", name).write_text(text, encoding="ascii")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    stand_apart()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 there is no shell in between

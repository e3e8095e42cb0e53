"""The environment of a profiled run: an allow-list for its own variables, and no look at those of other processes.

Profilers write the environment into their reports, and reports travel as artifacts of a job. So a profiled run has the
variables on this list and no others; a workload gets its values by `--perf-set NAME=VALUE`.

nsys also reads /proc/PID/environ of every process that it may look into: also those of the CI job that has started this
one, whose tokens no allow-list here can take away. The kernel refuses that to a process with fewer capabilities than
the other one has, and across user namespaces. So this file is a program too, which nsys is started by:
`python isolated_environment.py COMMAND...` becomes COMMAND, which then sees no other process's environment.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

CLONE_NEWUSER = 0x10000000
PR_CAPBSET_DROP = 24
REFUSED = 77  # an exit status that nothing else has
CAP_SETPCAP, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 8, 19, 21, 38


def isolated_command(command: Sequence[str]) -> list[str]:
    """`command`, run by this program."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), *command]


def can_isolate() -> bool:
    """Tests whether the kernel refuses a command that `isolated_command` runs the environment of this process."""
    import subprocess  # the program that this module is too needs none

    look = f"try: open({f'/proc/{os.getpid()}/environ'!r}, 'rb').read()\nexcept OSError: raise SystemExit({REFUSED})"
    command = isolated_command([sys.executable, "-I", "-S", "-c", look])
    return subprocess.run(command, capture_output=True, check=False).returncode == REFUSED


def isolate_this_process() -> None:
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


_ALLOWED = re.compile(
    r"""
    PATH | HOME | USER | LOGNAME | SHELL | TMPDIR | TZ | TERM | COLUMNS | LINES | NO_COLOR | FORCE_COLOR | PY_COLORS
    | HOSTNAME | KUBERNETES_SERVICE_(HOST|PORT(_HTTPS)?) | KUBERNETES_PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?
    | LANG | LANGUAGE | LC_[A-Z]+
    | LD_LIBRARY_PATH | LD_PRELOAD | CC | CXX | XDG_CACHE_HOME | XDG_RUNTIME_DIR | VIRTUAL_ENV | CONDA_PREFIX
    | PYTHON(PATH|HOME|HASHSEED|UNBUFFERED|DONTWRITEBYTECODE|NOUSERSITE|UTF8|IOENCODING|WARNINGS|PYCACHEPREFIX)
    | PYTEST_(ADDOPTS|PLUGINS|DISABLE_PLUGIN_AUTOLOAD)
    | (OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS | (OMP|KMP|GOMP)_[A-Z_]+
    | CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|HOME|PATH|CACHE_PATH|CACHE_DISABLE|CACHE_MAXSIZE)
    | CUDA_(LAUNCH_BLOCKING|MODULE_LOADING|MPS_PIPE_DIRECTORY|MPS_LOG_DIRECTORY|MPS_ACTIVE_THREAD_PERCENTAGE)
    | NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES|TF32_OVERRIDE)
    | CUBLAS_WORKSPACE_CONFIG | CUDNN_LOGLEVEL_DBG | NVTX_DISABLE
    | PYTORCH_(CUDA_)?ALLOC_CONF | PYTORCH_NVML_BASED_CUDA_CHECK | TORCH_(HOME|EXTENSIONS_DIR|CUDNN_[A-Z0-9_]+)
    | TORCHINDUCTOR_(CACHE_DIR|FX_GRAPH_CACHE|COMPILE_THREADS|FREEZING|MAX_AUTOTUNE) | TRITON_(CACHE_DIR|HOME)
    """,
    re.VERBOSE,
)


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a report may show."""
    return {name: value for name, value in environment.items() if _ALLOWED.fullmatch(name)}


if __name__ == "__main__":
    isolate_this_process()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 there is no shell in between

"""The environment of a profiled run: an allow-list for its own variables, and no access to those of other processes.

Profilers write the environment into their reports, and reports travel as artifacts of a job. So a profiled run has the
variables on this list and no others; a workload gets its values by `--perf-set NAME=VALUE`.

nsys also reads /proc/PID/environ of every process that it may look into: also those of the CI job that has started this
one, whose tokens no allow-list here can take away. The kernel refuses that to a process with fewer capabilities than
the other one has, and across user namespaces. Two programs of util-linux start nsys in one of these ways.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping

from gpugate.machine.children import run_child

REFUSED = 77  # an exit status that nothing else has
LOOK_S = 10.0
ISOLATIONS = (
    # Of root alone: with any of these capabilities a process may read the memory of every other one.
    ("setpriv", "--bounding-set=-sys_ptrace,-perfmon,-sys_admin,-setpcap"),
    ("unshare", "--user", "--map-current-user"),
)


def isolating_words() -> list[str] | None:
    """The beginning of a command line whose program cannot read the environment of this process; None where this
    machine allows no such program."""
    look = f"try: open({f'/proc/{os.getpid()}/environ'!r}, 'rb').read()\nexcept OSError: raise SystemExit({REFUSED})"
    for words in ISOLATIONS:
        command = [*words, sys.executable, "-I", "-S", "-c", look]
        if shutil.which(words[0]) and run_child(command, LOOK_S).status == REFUSED:
            return list(words)
    return None


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


def allowed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a report may show."""
    return {name: value for name, value in environment.items() if _ALLOWED.fullmatch(name)}

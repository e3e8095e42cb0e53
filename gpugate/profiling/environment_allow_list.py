"""The environment of a profiled run: profilers write it into their reports, and those travel as artifacts of a job.

So it holds what is on this list and nothing else. `--nsys-args="--env-var=NAME=value"` adds what a workload needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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

"""The same tests in a process of their own: what differs between processes shows only there."""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.errors import FreshProcessError
from gpugate.results.run import RunResult
from gpugate.session.child_process import module_command
from gpugate.session.options import FRESH_OPTION, FRESH_VARIABLE, Options
from gpugate.store import run_file

if TYPE_CHECKING:
    import torch

LAST_LINES = 15


def run_fresh(
    options: Options,
    device: torch.device,
    root: Path,
    node_ids: Sequence[str],
    json_path: Path,
    timeout_s: float | None = None,
    lock: int | None = None,
) -> RunResult:
    """Runs `node_ids` in one child, which writes its run to `json_path` and its output beside it, as `.log`. The child
    keeps the file descriptor `lock` open.

    The child compares with nothing, its baseline folder is empty, asks for no confirmation of its own, and leaves the
    proofs to the process that asks. Raises
    FreshProcessError, with the end of what it printed, when it ends early or not within `timeout_s`.
    """
    log_path = json_path.with_suffix(".log")
    # Node ids are relative to the root folder; the plugin may have come by `-p` alone.
    words = ["-p", "gpugate.plugin", f"--rootdir={root}", *node_ids, *_same_options(options, device)]
    token = secrets.token_hex(16)
    words += ["-p", "no:cacheprovider", "-q", f"{FRESH_OPTION}={token}"]
    with log_path.open("wb") as log, tempfile.TemporaryDirectory(prefix="gpugate-no-baselines-") as nothing:
        words += ["--perf-json", str(json_path), "--perf-baselines", nothing, "--perf-attempts", "1"]
        words += ["--perf-report", ""]
        try:
            # Kills the child when Ctrl-C arrives here, and at the time limit: no orphan goes on using the GPU.
            ended = subprocess.run(
                module_command("pytest", words),
                cwd=root,
                env={**os.environ, FRESH_VARIABLE: f"{os.getpid()}:{token}"},
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=timeout_s,
                pass_fds=() if lock is None else (lock,),
            )
        except subprocess.TimeoutExpired:
            raise FreshProcessError(f"did not end within {timeout_s:g} s", _last_lines(log_path)) from None
    if ended.returncode not in (0, 1) or not json_path.exists():
        raise FreshProcessError(f"ended with status {ended.returncode}", _last_lines(log_path))
    return run_file.read(json_path)


def _last_lines(log_path: Path) -> str:
    return "\n".join(log_path.read_text(errors="replace").splitlines()[-LAST_LINES:])


def _same_options(options: Options, device: torch.device) -> list[str]:
    words = ["--perf-device", str(device), "--perf-budget", str(options.budget_s)]
    words += ["--perf-step-timeout", str(options.step_timeout_s)]
    words += [f"--perf-set={name}={value}" for name, value in options.settings.items()]
    words += [f"--perf-mutate={options.fault}"] if options.fault else []
    return words

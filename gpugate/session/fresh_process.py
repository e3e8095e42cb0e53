"""Runs of selected tests in a fresh process, which show the variation between processes."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.errors import FreshProcessError
from gpugate.results.run import RunResult
from gpugate.session.child_process import module_command
from gpugate.session.options import FRESH_OPTION, FRESH_VARIABLE, Options
from gpugate.session.run_child import run_child
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
) -> RunResult:
    """Runs `node_ids` in one child, which writes its run to `json_path` and its output beside it, as `.log`.

    The child compares with no record, starts no confirmation of its own, and leaves the proofs to this process. Raises
    FreshProcessError, with the end of the child's output, where the child fails or does not end within `timeout_s`.
    """
    # Node ids are relative to the root folder; the plugin may have come by `-p` alone.
    words = ["-p", "gpugate.plugin", f"--rootdir={root}", *node_ids, *_same_options(options, device)]
    token = secrets.token_hex(16)
    words += ["-p", "no:cacheprovider", "-q", f"{FRESH_OPTION}={token}"]
    with tempfile.TemporaryDirectory(prefix="gpugate-no-baselines-") as nothing:
        words += ["--perf-json", str(json_path), "--perf-baselines", nothing]
        words += ["--perf-report", ""]
        ended = run_child(
            module_command("pytest", words),
            timeout_s,
            environment={**os.environ, FRESH_VARIABLE: f"{os.getpid()}:{token}"},
            folder=root,
            log_path=json_path.with_suffix(".log"),
        )
    if ended.status not in (0, 1) or not json_path.exists():
        raise FreshProcessError(ended.reason, "\n".join(ended.last_lines(LAST_LINES)))
    return run_file.read(json_path)


def _same_options(options: Options, device: torch.device) -> list[str]:
    words = ["--perf-device", str(device), "--perf-budget", str(options.budget_s)]
    words += ["-o", f"perf_step_timeout={options.step_timeout_s}"]
    words += [f"--perf-set={name}={value}" for name, value in options.settings.items()]
    words += [f"--perf-mutate={options.fault}"] if options.fault else []
    return words

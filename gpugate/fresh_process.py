"""The same tests in a process of their own: what differs between processes shows only there."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate import run_file
from gpugate.errors import FreshProcessError
from gpugate.options import Options
from gpugate.result import RunResult

if TYPE_CHECKING:
    import torch

LAST_LINES = 15


def run_fresh(
    options: Options, device: torch.device, root: Path, node_ids: Sequence[str], json_path: Path
) -> RunResult:
    """Runs `node_ids` in one child, which writes its run to `json_path` and its output beside it, as `.log`.

    The child compares with nothing, its baseline folder is empty, and asks for no confirmation of its own. Raises
    FreshProcessError, with the end of what it printed, when it ends early.
    """
    log_path = json_path.with_suffix(".log")
    # Node ids are relative to the root folder; the plugin may have come by `-p` alone.
    pytest = [sys.executable, "-m", "pytest", "-p", "gpugate.plugin", f"--rootdir={root}"]
    command = [*pytest, *node_ids, *_same_options(options, device), "-p", "no:cacheprovider", "-q"]
    with log_path.open("wb") as log, tempfile.TemporaryDirectory(prefix="gpugate-no-baselines-") as nothing:
        command += ["--perf-json", str(json_path), "--perf-baselines", nothing, "--perf-attempts", "1"]
        # subprocess.run kills the child when Ctrl-C arrives here: no orphan goes on using the GPU.
        code = subprocess.run(command, cwd=root, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code not in (0, 1) or not json_path.exists():
        tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-LAST_LINES:])
        raise FreshProcessError(code, tail)
    return run_file.read(json_path)


def _same_options(options: Options, device: torch.device) -> list[str]:
    words = ["--perf-device", str(device), "--perf-budget", str(options.budget_s)]
    words += ["--perf-input", str(options.input_path)] if options.input_path else []
    words += [f"--perf-mutate={options.fault}"] if options.fault else []
    words += ["--perf-checkpoint", str(options.checkpoint_path)] if options.checkpoint_path else []
    return words

"""Runs of selected tests in a fresh process, which show the variation between processes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.errors import FreshProcessError
from gpugate.machine.children import run_module
from gpugate.results.run import RunResult
from gpugate.session.options import MEASURE, Options
from gpugate.store import run_file

if TYPE_CHECKING:
    import torch


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
    words = [*node_ids, *repeat_options(options, device, root), "--perf-budget", str(options.budget_s)]
    words += [f"--perf-mutate={options.fault}"] if options.fault else []
    words += ["--perf-json", str(json_path), "--perf-report", ""]
    with tempfile.TemporaryDirectory(prefix="gpugate-no-baselines-") as nothing:
        words += ["--perf-baselines", nothing]
        ended = run_module("pytest", words, MEASURE, timeout_s, folder=root, log_path=json_path.with_suffix(".log"))
    if ended.status not in (0, 1) or not json_path.exists():
        raise FreshProcessError(ended.cause, "\n".join(ended.last_lines()))
    return run_file.read(json_path)


def repeat_options(options: Options, device: torch.device, root: Path) -> list[str]:
    """The arguments of pytest in a child that measures as this process does. Node ids are relative to the folder
    `root`; the plugin may have come by `-p` alone."""
    words = [f"--rootdir={root}", "-q", "-p", "gpugate.plugin", "-p", "no:cacheprovider"]
    words += ["--perf-device", str(device), "-o", f"perf_step_timeout={options.step_timeout_s}"]
    return [*words, *(f"--perf-set={name}={value}" for name, value in options.settings.items())]

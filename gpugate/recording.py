"""Recording a baseline: the same tests in several fresh processes, since runs differ by more than pairs show."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from gpugate import baseline, run_file
from gpugate.errors import BaselineError
from gpugate.result import RunResult
from gpugate.session import PerfSession

LAST_LINES = 15
Say = Callable[[str], None]


def record(session: PerfSession, node_ids: Sequence[str], say: Say) -> tuple[str, ...]:
    """Runs `node_ids` in fresh processes besides this one and writes the baselines; returns what changed.

    Raises BaselineError, with every file as it was, when a process or a case failed.
    """
    others = session.options.processes - 1
    runs = [session.result]
    _files(session, runs, 1)  # what this process already refuses needs no others
    with tempfile.TemporaryDirectory(prefix="gpugate-record-") as folder:
        for number in range(others):
            say(f"recording: fresh process {number + 2} of {others + 1}")
            runs.append(_run_in_fresh_process(session, node_ids, Path(folder, str(number))))
    # All files are made before the first is written: a refusal leaves every one as it was.
    files = _files(session, runs, session.options.processes)
    return tuple(line for file in files for line in baseline.write(session.baselines_folder, file))


def _files(session: PerfSession, runs: Sequence[RunResult], processes: int) -> list[baseline.BaselineFile]:
    """The files with what `runs` measured."""
    folder = session.baselines_folder
    names = {case.workload for case in session.result.cases.values() if case.skipped is None}
    if not names:
        raise BaselineError("every case was skipped, so no baseline was written: record where they can be measured")
    old = baseline.load_all(folder, {*names, *(path.stem for path in folder.glob("*.json"))})
    occasion = baseline.Occasion(_user_name(), session.options.reason, session.options.new_anchor)
    return [baseline.updated(old.get(name), name, runs, occasion, processes) for name in sorted(names)]


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user has no name
        return f"uid {os.getuid()}"


def _run_in_fresh_process(session: PerfSession, node_ids: Sequence[str], folder: Path) -> RunResult:
    """The children compare with nothing: their baseline folder is empty."""
    (folder / "no-baselines").mkdir(parents=True)
    json_path, log_path = folder / "run.json", folder / "log.txt"
    # Node ids are relative to the root folder; the plugin may have come by `-p` alone.
    pytest = [sys.executable, "-m", "pytest", "-p", "gpugate.plugin", f"--rootdir={session.root}"]
    command = [*pytest, *node_ids, *_same_options(session), "-p", "no:cacheprovider", "-q"]
    command += ["--perf-json", str(json_path), "--perf-baselines", str(folder / "no-baselines")]
    with log_path.open("wb") as log:
        # subprocess.run kills the child when Ctrl-C arrives here: no orphan goes on using the GPU.
        code = subprocess.run(command, cwd=session.root, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code not in (0, 1) or not json_path.exists():
        tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-LAST_LINES:])
        raise BaselineError(f"a recording process ended with status {code}; nothing was written; it said:\n{tail}")
    return run_file.read(json_path)


def _same_options(session: PerfSession) -> list[str]:
    options = session.options
    words = ["--perf-device", str(session.device), "--perf-budget", str(options.budget_s)]
    words += ["--perf-input", str(options.input_path)] if options.input_path else []
    words += ["--perf-checkpoint", str(options.checkpoint_path)] if options.checkpoint_path else []
    return words

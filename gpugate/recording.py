"""Recording a baseline: the same tests in several fresh processes, since runs differ by more than pairs show."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from gpugate import baseline, run_file
from gpugate.environment import compare
from gpugate.errors import BaselineError
from gpugate.result import RunResult
from gpugate.session import PerfSession

LAST_LINES = 15
RUN_FILES = "run-*.json"
Say = Callable[[str], None]


def record(session: PerfSession, node_ids: Sequence[str], say: Say) -> tuple[str, ...]:
    """Runs `node_ids` in fresh processes besides this one and writes the baselines; returns what changed.

    With `--perf-runs` every run is kept, and runs that are there already count: a recording that was cut off goes on.
    Raises BaselineError, with every baseline as it was, when a process or a case failed.
    """
    _files(session, [session.result], 1)  # what this process already refuses needs no others
    processes = session.options.processes
    with ExitStack() as stack:
        folder = session.options.runs_path
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpugate-record-")))
        runs = [*_earlier_runs(session, folder), session.result]
        if len(runs) > 1:
            say(f"recording: goes on from {len(runs) - 1} of {processes} processes in {folder}")
        run_file.write(_free_path(folder), session.result)
        while len(runs) < processes:
            say(f"recording: fresh process {len(runs) + 1} of {processes}")
            runs.append(_run_in_fresh_process(session, node_ids, _free_path(folder)))
    # All files are made before the first is written: a refusal leaves every one as it was.
    files = _files(session, runs, processes)
    lines = [line for file in files for line in baseline.write(session.baselines_folder, file)]
    return (*lines, f"written to {session.baselines_folder}: read the difference and commit it")


def _earlier_runs(session: PerfSession, folder: Path) -> list[RunResult]:
    """Complete runs that an earlier recording left; raises BaselineError for one of another machine or software."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for path in sorted(folder.glob(RUN_FILES)):
        run = run_file.read(path)
        match = compare(run.environment, session.environment)
        if match.kind != "exact":
            changes = "; ".join(match.differences)
            raise BaselineError(f"{path} was measured under other conditions ({changes}): give an empty folder")
        if not run.interrupted:
            runs.append(run)
    return runs


def _free_path(folder: Path) -> Path:
    return folder / f"run-{sum(1 for _ in folder.glob(RUN_FILES)) + 1}.json"


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


def _run_in_fresh_process(session: PerfSession, node_ids: Sequence[str], json_path: Path) -> RunResult:
    """One child, which writes its run to `json_path`. It compares with nothing: its baseline folder is empty."""
    log_path = json_path.with_suffix(".log")
    # Node ids are relative to the root folder; the plugin may have come by `-p` alone.
    pytest = [sys.executable, "-m", "pytest", "-p", "gpugate.plugin", f"--rootdir={session.root}"]
    command = [*pytest, *node_ids, *_same_options(session), "-p", "no:cacheprovider", "-q"]
    with log_path.open("wb") as log, tempfile.TemporaryDirectory(prefix="gpugate-no-baselines-") as nothing:
        command += ["--perf-json", str(json_path), "--perf-baselines", nothing]
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

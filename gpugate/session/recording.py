"""Recording a baseline: the same tests in several fresh processes, since runs differ by more than pairs show."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpugate.errors import BaselineError, EnvironmentUnfitError, FreshProcessError
from gpugate.machine.environment import compare, machine_name
from gpugate.machine.nvml import foreign_processes
from gpugate.results.run import RunResult
from gpugate.results.summary import by_sitting, one_process, undisturbed
from gpugate.session.fresh_process import run_fresh
from gpugate.session.perf_session import CACHE_FOLDER, PerfSession
from gpugate.session.termination import delay_signals
from gpugate.store import baseline, profiles_file, run_file
from gpugate.store.writable_folder import make_writable

RUN_FILES = "run-*.json"
SPARE_PROCESSES = 2  # beyond `--perf-processes`, where a case was disturbed in some
PrintLine = Callable[[str], None]
PrintLines = Callable[[Sequence[str]], object]


def record(session: PerfSession, print_line: PrintLine, print_lines: PrintLines) -> None:
    """Runs the session's tests in fresh processes besides this one, writes the baselines and prints what changed.

    With `--perf-runs` every run is kept, and runs that are there already count: a recording that was cut off goes on.
    Without it the runs of a recording that ends early are kept in a folder that is named.
    Raises BaselineError, with every baseline as it was, when a process or a case failed.
    """
    _files(session, [session.result], 1)  # what this process already refuses needs no others
    with _runs_folder(session, print_line) as folder:
        runs = _runs(session, folder, print_line)
        # All files are made before the first is written: a refusal leaves every one as it was.
        files = _files(session, runs, session.options.processes)
        profiles = profiles_file.made(session.options.baselines_path, machine_name(session.environment), runs[-1:])
        write(session.baselines_folder, files, profiles, print_lines)


@contextmanager
def _runs_folder(session: PerfSession, print_line: PrintLine) -> Iterator[Path]:
    """The folder of `--perf-runs`, or else a new one, which is kept and named where the recording ends early."""
    given = session.options.runs_path
    folder = given or session.root / CACHE_FOLDER / f"recording-{os.getpid()}-{session.result.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException:
        again = shlex.join(["--perf-runs", str(folder)])
        print_line(f"recording: what was measured is kept in {folder}: the same command with {again} goes on from it")
        raise
    if given is None:
        shutil.rmtree(folder, ignore_errors=True)


def _runs(session: PerfSession, folder: Path, print_line: PrintLine) -> list[RunResult]:
    """The earlier runs of the folder, this one, and as many fresh processes as are missing."""
    processes = session.options.processes
    runs = [*_earlier_runs(session, folder), session.result]
    if len(runs) > 1:
        print_line(f"recording: goes on from {len(runs) - 1} of {processes} processes in {folder}")
    run_file.write(_free_path(folder), session.result)
    while len(runs) < processes:
        print_line(f"recording: fresh process {len(runs) + 1} of {processes}")
        runs.append(_fresh_run(session, _free_path(folder)))
    while len(runs) < processes + SPARE_PROCESSES and (disturbed := _disturbed(runs, processes)):
        print_line(f"recording: fresh process {len(runs) + 1}, since {disturbed} was disturbed in one")
        runs.append(_fresh_run(session, _free_path(folder)))
    return runs


def write(
    folder: Path,
    files: Sequence[baseline.BaselineFile],
    profiles: Mapping[Path, profiles_file.Profiles],
    print_lines: PrintLines,
) -> None:
    """Writes the files and prints what changed; a signal such as Ctrl-C takes effect after both.

    Raises BaselineError for a baseline that cannot be written.
    """
    with delay_signals():
        lines = [line for file in files for line in baseline.write(folder, file)]
        problem = profiles_file.write(profiles)
        lines += [problem] if problem else []
        print_lines([*lines, f"written to {folder}: read the difference and commit it"])


def _disturbed(runs: Sequence[RunResult], processes: int) -> str | None:
    """The first case that fewer than `processes` of the runs measured undisturbed."""
    for case_id in runs[-1].cases:
        of_case = [(run.started_at, case.measurement) for run in runs if (case := run.cases.get(case_id))]
        measured = [(started_at, found.instances) for started_at, found in of_case if found is not None and found.pairs]
        processes_of_case = [one_process(builds) for _, builds in measured]
        nights = by_sitting([started_at for started_at, _ in measured])
        if processes_of_case and len(undisturbed(processes_of_case, nights)) < processes:
            return case_id
    return None


def _earlier_runs(session: PerfSession, folder: Path) -> list[RunResult]:
    """Complete runs that an earlier recording left; raises BaselineError for one of another machine or software."""
    runs = []
    for path in sorted(folder.glob(RUN_FILES)):
        run = run_file.read(path)
        match = compare(run.environment, session.environment)
        if match.kind != "exact":
            changes = "; ".join(match.differences)
            raise BaselineError(f"{path} was measured under other conditions ({changes}): give an empty folder")
        if run.mutated is not None:
            raise BaselineError(
                f"{path} was mutated by {run.mutated}, which no baseline may hold: take it out of {folder}"
            )
        if not run.interrupted:
            runs.append(run)
    return runs


def _free_path(folder: Path) -> Path:
    return folder / f"run-{sum(1 for _ in folder.glob(RUN_FILES)) + 1}.json"


def _files(session: PerfSession, runs: Sequence[RunResult], processes: int) -> list[baseline.BaselineFile]:
    """The files with what `runs` measured."""
    options, folder = session.options, session.baselines_folder
    names = {case.workload for case in session.result.cases.values() if case.skipped is None}
    if not names:
        raise BaselineError("every case was skipped, so no baseline was written: record where they can be measured")
    old = baseline.load_all(folder)
    occasion = baseline.Occasion(options.reason, options.new_anchor, force=options.force)
    return [baseline.updated(old.get(name), name, runs, occasion, processes) for name in sorted(names)]


def _fresh_run(session: PerfSession, json_path: Path) -> RunResult:
    node_ids = list(dict.fromkeys(session.node_ids.values()))
    try:
        return run_fresh(session.options, session.device, session.root, node_ids, json_path)
    except FreshProcessError as error:
        raise BaselineError(f"{error}; nothing was written; it said:\n{error.said}") from error


@contextmanager
def allowed_to_record(session: PerfSession) -> Iterator[None]:
    """Holds the baseline folder for the whole session. Raises EnvironmentUnfitError on a GPU that others use, and
    BaselineError for a folder of `--perf-runs` that cannot be made or written."""
    import torch

    if session.options.runs_path is not None:
        _make(session.options.runs_path)
    if session.device.type == "cuda":
        torch.cuda.synchronize(session.device)  # cuda only  # so that NVML lists this process and we know it
        others = foreign_processes(session.device.index or 0)  # cuda only
        if others:
            pids = ", ".join(str(pid) for pid in others)
            raise EnvironmentUnfitError(f"process {pids} also uses {session.device}: record when it has ended")
    with baseline.exclusive(session.baselines_folder):
        yield


def _make(folder: Path) -> None:
    try:
        make_writable(folder)
    except OSError as error:
        problem = error.strerror or str(error)
        raise BaselineError(
            f"--perf-runs {folder} cannot be written ({problem}): give a folder that can be made and written"
        ) from error

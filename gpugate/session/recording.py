"""The recording of a baseline: selected tests run in several fresh processes."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpugate import units
from gpugate.errors import BaselineError, FreshProcessError
from gpugate.machine.environment import machine_name
from gpugate.machine.nvml import foreign_processes
from gpugate.report.next_step import describe_recording
from gpugate.results.run import RunResult
from gpugate.session.confirm import run_fresh
from gpugate.session.options import DEFAULT_ON_SEVERAL_GPUS, DEFAULT_PROCESSES
from gpugate.session.perf_session import PerfSession
from gpugate.store import baseline, run_file
from gpugate.store.provenance import list_code
from gpugate.store.version import CACHE_FOLDER, git
from gpugate.store.writable_folder import choose_folder

PrintLines = Callable[[Sequence[str]], object]

MOST_IN_COMMAND = 5  # cases, by their ids


def record(session: PerfSession, print_lines: PrintLines) -> None:
    """Runs the session's tests in fresh processes besides this one, writes the baselines and prints what changed.

    The runs stay in a folder until the next recording. A printed line names it, and what to do with them.
    Raises BaselineError: when a process or every case failed, with every baseline as it was, else as `write` does.
    """
    _, refused = _files(session, [session.result], 1)  # what this process already refuses needs no others
    session.node_ids = {case_id: node for case_id, node in session.node_ids.items() if case_id not in refused}
    machine, baselines = machine_name(session.environment), session.options.baselines_path
    folder = choose_folder(session.root / CACHE_FOLDER) / f"recording-{machine}"
    again = shlex.join(["gpugate", "accept", str(folder), "--baselines", str(baselines)])
    kept = f"the runs stay in {folder} until the next recording"
    step = "they are too few for a record: give the same command again"
    try:
        runs = _runs(session, folder)
        step = f"{again} records them, and has further options"
        # All files are made before the first is written: a refusal leaves every one as it was.
        files, refused = _files(session, runs, planned_processes(session))
    except BaseException:
        session.print_line(f"recording: {kept}; {step}")
        raise
    more = [f"{kept}; {step}", *warn_about_code(session)]
    write(session.records.folder, files, refused, runs, lambda lines: print_lines([*lines, *more]))


def warn_about_code(session: PerfSession) -> list[str]:
    """A sentence where a later gate may not find the code that is recorded, else nothing."""
    root, origin, ignored = session.root, session.result.provenance, session.options.result_paths
    if origin is None or origin.commit is None:
        in_git = git(root, "rev-parse", "--git-dir") is not None
        return ["recorded without a commit: no gate can compare with this code; commit first"] if in_git else []
    edited = list_code(root, ignored) ^ list_code(root, ignored, "HEAD")
    names = units.list_names(sorted({entry.partition(" ")[2] for entry in edited}))
    until = "no gate can compare with this code until a commit has these files as they are now"
    return [f"recorded with uncommitted changes of {names}: {until}"] if edited else []


def planned_processes(session: PerfSession) -> int:
    """The processes of a recording: as `perf_processes` has it, else more on a machine with several GPUs.

    Such a machine serves a whole suite every night. From 11 processes the variation of a case is known with twice the
    degrees of freedom of 6, so that a tolerance is four times the variation in place of six.
    """
    import torch

    if session.options.processes is not None:
        return session.options.processes
    several = session.device.type == "cuda" and torch.cuda.device_count() > 1
    return DEFAULT_ON_SEVERAL_GPUS if several else DEFAULT_PROCESSES


def _runs(session: PerfSession, folder: Path) -> list[RunResult]:
    """This process's run and those of fresh processes, also written to `folder` in place of an earlier recording."""
    processes, runs = planned_processes(session), [session.result]
    shutil.rmtree(folder, ignore_errors=True)
    with baseline.FILE.writing(folder):
        folder.mkdir(parents=True)
    run_file.write(folder / "run-1.json", session.result)
    node_ids = list(dict.fromkeys(session.node_ids.values()))
    for number in range(2, processes + 1):
        left_s = session.elapsed_s / len(runs) * (processes - len(runs))
        session.print_line(f"recording: fresh process {number} of {processes}, about {units.duration(left_s)} left")
        try:
            runs.append(run_fresh(session, node_ids, folder / f"run-{number}.json"))
        except FreshProcessError as error:
            raise BaselineError(f"{error}; nothing was written; its output ended with:\n{error.printed}") from error
    return runs


def write(
    folder: Path,
    files: Sequence[baseline.BaselineFile],
    refused: Mapping[str, str],
    runs: Sequence[RunResult],
    print_lines: PrintLines,
) -> None:
    """Writes the files that were made of `runs`, and prints what changed and the next step.

    Raises BaselineError for a baseline that cannot be written, and at the end for the cases that were `refused`.
    """
    lines = [line for file in files for line in baseline.write(folder, file)]
    recorded = {case_id for run in runs for case_id in run.cases} - refused.keys()
    useless = baseline.find_useless(files, recorded)
    lines.append(f"written to {folder}" + (": read the difference and commit it" if recorded - {*useless} else ""))
    if useless:
        missed = f"miss a slowdown of {units.percent(baseline.USEFUL)} by the wall time"
        again = f": {describe_recording(runs[-1], useless)}" if len(useless) <= MOST_IN_COMMAND else ""
        lines.append(f"{missed}: {units.list_names(useless)}; record them again on a quieter machine{again}")
    print_lines(lines)
    if refused:
        raise BaselineError("\n".join(f"not recorded: {reason}" for reason in dict.fromkeys(refused.values())))


def _files(session: PerfSession, runs: Sequence[RunResult], processes: int) -> baseline.Recorded:
    """Makes the baseline files from `runs`, and the reasons of the cases that cannot be recorded."""
    how, old = baseline.Recording(session.options.reason), baseline.load_all(session.records.folder)
    return baseline.record_cases(old, runs, how, processes)


@contextmanager
def lock_for_recording(session: PerfSession) -> Iterator[None]:
    """Locks the folder of baselines for the whole session. Raises BaselineError on a GPU that others use."""
    import torch

    if session.device.type == "cuda":
        torch.cuda.synchronize(session.device)  # cuda only  # so that NVML lists this process and we know it
        others = foreign_processes(session.device.index or 0)  # cuda only
        if others:
            pids = ", ".join(str(pid) for pid in others)
            raise BaselineError(f"process {pids} also uses {session.device}: record when it has ended")
    with baseline.lock(session.records.folder):
        yield

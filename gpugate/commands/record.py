"""`gpugate record DIR`: writes baselines from stored runs, without a GPU.

The command serves machines with several GPUs, on each of which one process measures, and runs whose baselines are
wanted afterwards.
"""

from __future__ import annotations

import argparse
import datetime
from contextlib import ExitStack
from pathlib import Path

from gpugate.errors import BaselineError
from gpugate.machine.environment import differences, machine_name
from gpugate.results.run import RunResult
from gpugate.session.options import DEFAULT_BASELINES, DEFAULT_PROCESSES, whole_number
from gpugate.session.recording import write
from gpugate.store import baseline, profiles_file, run_file
from gpugate.store.night_files import find_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=Path,
        nargs="?",
        help="a folder of runs that --perf-json wrote, each in a process of its own, or a folder of nights",
    )
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        default="",
        help="the reason of the recording, which the baseline file keeps (default: none)",
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        default=str(DEFAULT_PROCESSES),
        help="fewest processes of a case (default: %(default)s)",
    )
    parser.add_argument(
        "--baselines",
        metavar="DIR",
        type=Path,
        default=Path(DEFAULT_BASELINES),
        help="the folder of baselines (default: %(default)s)",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="add the runs to the recorded processes, such as those of another night (default: off)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace a record also by processes that were disturbed (default: it stays)",
    )
    parser.add_argument("--new-anchor", action="store_true", help="make the new record the anchor, too (default: off)")
    parser.add_argument(
        "--delete", metavar="CASE", help="record nothing: delete the record of CASE, of every machine (default: none)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the baselines of all cases that can be recorded, and prints the changes.

    The finished cases of an interrupted run count.

    With `--delete`, the command deletes the record of one case instead.
    Raises OptionError for an invalid number of processes, RunFileError for a file that is no run, and BaselineError
    where the runs cannot form one record, or a case was not recorded.
    """
    if (arguments.folder is None) == (arguments.delete is None):
        raise BaselineError("give either DIR, a folder of runs to record, or --delete CASE")
    if arguments.delete is not None:
        _delete(arguments.baselines, arguments.delete)
        return 0
    processes = whole_number("--processes", arguments.processes)
    runs = _runs(arguments.folder)
    folder = arguments.baselines / machine_name(runs[0].environment)
    recording = baseline.Recording(arguments.reason, arguments.new_anchor, arguments.add, arguments.force)
    with baseline.exclusive(folder):
        old = baseline.load_all(folder)
        files, refused = baseline.record_cases(old, runs, recording, processes)
        # The contents of all files are made before the first file is written: a refusal leaves every file unchanged.
        write(folder, files, runs, refused, lambda lines: print(*lines, sep="\n"))
    return 0


def _delete(baselines: Path, case_id: str) -> None:
    """Deletes the record of a case. Raises BaselineError where no machine has one, or its file is damaged."""
    machines = [path for path in sorted(baselines.glob("*/")) if path.name != profiles_file.FOLDER]
    workload, *names = case_id.rsplit("/", 2)
    with ExitStack() as stack:
        for folder in machines:
            stack.enter_context(baseline.exclusive(folder))
        # The contents of all files are made before the first file is written.
        found = {folder: file for folder in machines if (file := baseline.drop_case(folder, case_id))}
        if not found:
            raise BaselineError(f"{case_id!r} is recorded nowhere in {baselines}: give a case such as a gate names")
        paths = [profiles_file.path_of(baselines, folder.name, workload) for folder in found]
        profiles = [profiles_file.drop_case(path, "/".join(names)) for path in paths]
        for (folder, file), profile, path in zip(found.items(), profiles, paths, strict=True):
            print(f"{case_id}: deleted from {baseline.replace_or_delete(folder, file)}; commit the difference")
            if file.cases:
                profiles_file.write(profile)
            else:
                path.unlink(missing_ok=True)


def _runs(folder: Path) -> list[RunResult]:
    if not folder.is_dir():
        raise BaselineError(
            f"{folder} is no folder: give the one that --perf-json wrote runs to, or that of your nights"
        )
    paths = find_runs(folder)
    if not paths:
        raise BaselineError(f"{folder} contains no run: write some with --perf-json, each in a process of its own")
    seen: dict[tuple[str, int], Path] = {}
    runs = []
    for path in paths:
        run = run_file.read(path)
        twin = seen.setdefault((run.started_at, run.seed), path)
        if twin != path:
            raise BaselineError(f"{path} is the run of {twin} once more: remove one of them")
        run_file.refuse_no_night(path, run)
        runs.append(run)
    found = differences([run.environment for run in runs])
    if found:
        raise BaselineError(f"the runs' environments differ ({', '.join(found)}): give each its own folder")
    return sorted(runs, key=lambda run: datetime.datetime.fromisoformat(run.started_at))

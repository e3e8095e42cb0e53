"""`gpugate accept RUNS`: makes stored runs the records of their cases, without a GPU and without measuring again.

The command accepts the new normal of a case, such as an intended slowdown. It also serves machines with several GPUs,
where a process measures on each GPU, and runs whose baselines are wanted afterwards.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from gpugate.errors import BaselineError
from gpugate.machine.environment import machine_name
from gpugate.results.run import RunResult
from gpugate.session.options import check_reason, find_baselines, find_project, whole_number
from gpugate.session.recording import write
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.store import baseline, nights, run_file
from gpugate.store.night_files import find_runs
from gpugate.units import list_names

KEPT = ".gpugate/runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 every case is recorded, or the record is deleted, 2 a case is not recorded, or a file or an "
        "option is unusable"
    )
    add = parser.add_argument
    runs = (
        "a run that --perf-json wrote, a night, or a folder of runs or of nights; each of its processes counts "
        "(default: the kept runs of the newest run's code, at most ten)"
    )
    case = "accept this case alone; repeat it for more (default: all cases)"
    folder = "the folder of baselines (default: the setting perf_baselines, else baselines)"
    more = "add the runs to the recorded processes, such as those of another night (default: off)"
    force = "replace a record even by one that detects far less (default: the sharper record stays)"
    delete = "record nothing, but delete the record of CASE on every machine (default: none)"
    add("runs", metavar="RUNS", type=Path, nargs="?", help=runs)
    add("--case", metavar="CASE", action="append", default=[], help=case)
    add("--reason", metavar="TEXT", default="", help="the reason, which the baseline file keeps (default: none)")
    fewest = "the fewest processes that make a record (default: %(default)s)"
    add("--processes", metavar="N", default=str(DECIDING_PROCESSES), help=fewest)
    add("--baselines", metavar="DIR", type=Path, help=folder)
    add("--add", action="store_true", help=more)
    add("--force", action="store_true", help=force)
    add("--delete", metavar="CASE", help=delete)


def run(arguments: argparse.Namespace) -> int:
    """Writes the baselines of all cases that can be recorded, and prints the changes.

    The finished cases of an interrupted run count. With `--delete`, the command deletes the record of one case instead.
    Raises OptionError for an invalid number of processes, a placeholder as the reason and a path without a run,
    RunFileError for a file that is no run, and BaselineError where the runs cannot form one record, or a case was not
    recorded.
    """
    if arguments.delete is not None:
        if arguments.runs is not None or arguments.case or arguments.add or arguments.force or arguments.reason:
            raise BaselineError("give --delete CASE without RUNS and options of a recording: it records nothing")
        _delete(find_baselines(arguments.baselines), arguments.delete)
        return 0
    processes = whole_number("--processes", arguments.processes)
    reason = check_reason("--reason", arguments.reason)
    stored = _runs(arguments.runs)
    own = next((one.command for one in stored if one.chosen_inputs), None)
    if own is not None and arguments.baselines is None:
        raise BaselineError(f"{own!r} measured inputs of your own: record them in another folder by --baselines DIR")
    runs = [process for one in stored for process in _list_processes(one, arguments.case)]
    absent = set(arguments.case).difference(*(one.cases for one in runs))
    if absent:
        measured = sorted({name for one in stored for name, case in one.cases.items() if case.measurement})
        similar = get_close_matches(min(absent), measured) or measured
        place = arguments.runs or KEPT
        raise BaselineError(f"{place} has no case {min(absent)}: give a case that it measured, {list_names(similar)}")
    folder = find_baselines(arguments.baselines) / machine_name(runs[0].environment)
    recording = baseline.Recording(reason, arguments.add, arguments.force)
    if arguments.runs is None:
        print(f"the kept runs from {stored[0].started_at} to {stored[-1].started_at}:")
    with baseline.lock(folder):
        old = baseline.load_all(folder)
        files, refused = baseline.record_cases(old, runs, recording, processes)
        refused |= _find_skipped(runs, arguments.case)
        # The contents of all files are made before the first file is written: a refusal leaves every file unchanged.
        write(folder, files, refused, runs, lambda lines: print(*lines, sep="\n"))
    return 0


def _list_processes(run: RunResult, wanted: Sequence[str]) -> Iterator[RunResult]:
    """The run with the wanted cases, or all, and a run of each further process that confirmed some of them; nothing of
    a run without a wanted case, which may be of other software."""
    cases = {name: case for name, case in run.cases.items() if not wanted or name in wanted}
    if cases or not wanted:
        yield replace(run, cases=cases)
    for number in range(max((len(case.attempts) for case in cases.values()), default=0)):
        further = {name: case.attempts[number] for name, case in cases.items() if len(case.attempts) > number}
        measured = {
            name: replace(cases[name], measurement=one.measurement, attempts=[])
            for name, one in further.items()
            if one.measurement is not None and one.problem is None
        }
        yield replace(run, cases=measured)


def _find_skipped(runs: Sequence[RunResult], wanted: Sequence[str]) -> dict[str, str]:
    """The reason for each wanted case that no run measured."""
    skips = {name: [run.cases[name].skipped for run in runs if name in run.cases] for name in wanted}
    return {name: f"every run skipped {name}: {why[-1]}" for name, why in skips.items() if None not in why}


def _delete(baselines: Path, case_id: str) -> None:
    """Deletes the record of a case on one machine after another. Raises BaselineError where no machine has one, or its
    file is damaged."""
    found = False
    for folder in sorted(baselines.glob("*/")):
        with baseline.lock(folder):
            file = baseline.drop_case(folder, case_id)
            if file is not None:
                baseline.write(folder, file)
                print(f"{case_id}: deleted from {folder / f'{file.workload}.json'}; commit the difference")
                found = True
    if not found:
        raise BaselineError(f"{case_id!r} is recorded nowhere in {baselines}: give a case such as a gate names")


def _runs(path: Path | None) -> list[RunResult]:
    paths = nights.find_newest(find_project()) if path is None else find_runs(path)
    if not paths:
        raise BaselineError(f"{KEPT} contains no run: run the tests, each in a process of its own")
    seen: dict[tuple[object, ...], Path] = {}
    runs = []
    for file in paths:
        run = run_file.read_night(file)
        twin = seen.setdefault((run.started_at, run.seed, *run.cases), file)
        if twin != file:
            raise BaselineError(f"{file} is the run of {twin} once more: remove one of them")
        if path is None:  # one gate on a busy machine must not stand in the way of the others
            valid = {name: case for name, case in run.cases.items() if case.environment_problem is None}
            run = replace(run, cases=valid)
        runs.append(run)
    return sorted(runs, key=lambda run: run.started)

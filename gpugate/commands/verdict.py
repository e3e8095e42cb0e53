"""`gpugate verdict NIGHT`: the exit status of a stored gate, for scripts and schedulers, also of the shards of one.

The exit status of pytest alone is no evidence: a step that calls `os._exit(0)` ends pytest with status 0 before
anything is judged.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpugate.errors import ReplayError
from gpugate.report.view import RunView
from gpugate.results.run import RunResult
from gpugate.session.decide_again import decide_again, find_changes
from gpugate.session.merging import ShardRun, check_shard, list_red, merge, run_problems
from gpugate.session.night_report import prepare_night, write_pages
from gpugate.store import run_file
from gpugate.store.night_files import run_path
from gpugate.store.run_file import RunFileError
from gpugate.units import list_names, number_of

GREEN, RED = 0, 1
MOST_PRINTED = 10  # problems in one line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        metavar="NIGHT",
        type=Path,
        nargs="+",
        help="a folder of --perf-report or a file that --perf-json wrote; with --merge, those of the shards of a night",
    )
    parser.add_argument(
        "--merge", metavar="DIR", type=Path, help="make one night of the shards that --perf-shard measured, in DIR"
    )
    parser.epilog = (
        "exit status: 0 for a green gate, 1 for a red one and for a shard that is missing, 2 where NIGHT is missing, "
        "unreadable, interrupted, a recording, a run without --gate or with --perf-mutate, and where the runs are not "
        "the shards of one night"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints one sentence and returns GREEN or RED. The held verdicts decide, whatever exit status a file has.

    Raises RunFileError for a file that cannot be read and for a run that is no night, and ReplayError
    for a run that was interrupted or was no gate, and for shards that do not belong together.
    """
    paths = list(map(run_path, arguments.runs))
    if arguments.merge is not None:
        return _merge(paths, arguments.merge)
    if len(paths) > 1:
        raise ReplayError(f"{len(paths)} nights have no verdict together: give one, or --merge DIR for shards")
    (path,) = paths
    stored = run_file.read_night(path)
    if stored.interrupted:
        raise ReplayError(f"{path} was interrupted, so it has no verdict: measure again")
    if stored.recording or not stored.gate:
        raise ReplayError(f"{path} was measured without --gate, so it has no verdict: measure with it")
    if stored.exit_status is None:
        raise ReplayError(f"{path} has no exit status, so its run did not end: measure again")
    view, problems = RunView(stored), dict.fromkeys([*stored.problems, *run_problems(stored)])
    absent = [f"{number_of(len(ids), 'case')} not measured: {reason}" for reason, ids in view.refused.items()]
    red = [*list_red(stored), *problems, *_describe_other_verdicts(path, stored), *absent]
    green = stored.exit_status == 0 and not red
    shard = "" if stored.shard is None else f", shard {stored.shard}, whose night --merge makes,"
    said = f"{path}{shard} is {'green' if green else f'red, with exit status {stored.exit_status}'}: {view.tally}"
    more = [f"{len(red) - MOST_PRINTED} more problems"] if len(red) > MOST_PRINTED else []
    print(said, *red[:MOST_PRINTED], *more, sep="; ")
    return GREEN if green else RED


def _describe_other_verdicts(path: Path, stored: RunResult) -> list[str]:
    """A sentence about cases whose stored verdicts are not those that their measurements give; none for a run of
    another version of gpugate, whose rules may differ."""
    with suppress(RunFileError):
        run_file.refuse_other_version(path, stored)
        changes = find_changes(stored, decide_again(stored))
        cases = list(dict.fromkeys(change.case_id for change in changes))
        return [f"the measurements of {list_names(cases, MOST_PRINTED)} give other verdicts"] if cases else []
    return []


def _merge(paths: Sequence[Path], output: Path) -> int:
    """Writes the night of the shards and prints its result. A folder without a run is a shard that is missing."""
    if any(path.parent.resolve() == output.resolve() for path in paths):
        raise ReplayError(f"--merge {output} is the folder of a shard: give another one")
    for path in paths:
        if not path.exists():
            print(f"gpugate verdict: {path} does not exist, so its shard ended before its first case", file=sys.stderr)
    shards = [_read_shard(path) for path in paths if path.exists()]
    if not shards:
        step = "measure them with --perf-shard and --perf-report"
        raise ReplayError(f"none of the {len(paths)} shards has a run: {step}")
    night = merge(shards)
    prepare_night(output)
    run_file.write(run_path(output), night)
    write_pages(output, night)
    print(f"{output} of {number_of(len(shards), 'shard')}: {RunView(night).headline}")
    print(*(f"ERROR: {problem}\n" for problem in night.problems), sep="", end="")
    return RED if night.exit_status else GREEN


def _read_shard(path: Path) -> ShardRun:
    shard = run_file.read_night(path)
    run_file.refuse_other_version(path, shard)
    return check_shard(path, shard)

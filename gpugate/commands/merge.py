"""`gpugate merge DIR ... --output NIGHT`: one night of the shards that `--perf-shard` measured."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpugate.report.night import prepare_night, write_night
from gpugate.report.view import headline, tally
from gpugate.session.merging import MergeError, ShardRun, check_shard, merge
from gpugate.store import run_file
from gpugate.store.night_files import run_path
from gpugate.units import number_of

GREEN, RED = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shards", metavar="DIR", type=Path, nargs="+", help="the folder of --perf-report of a shard, or its run file"
    )
    parser.add_argument(
        "--output", metavar="NIGHT", type=Path, required=True, help="the folder of the whole night, beside other nights"
    )
    parser.epilog = (
        "exit status: 0 the whole night is green, 1 it is red or a shard is missing, 2 the runs are not the shards of "
        "one night, or one of them cannot be read"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the night and prints its result. A folder without a run is a shard that is missing.

    Raises MergeError for shards that do not belong together, and RunFileError for a run that cannot be used.
    """
    output, paths = arguments.output, [run_path(path) for path in arguments.shards]
    if any(path.parent.resolve() == output.resolve() for path in paths):
        raise MergeError(f"--output {output} is the folder of a shard: give another one")
    shards = [_read(path) for path in paths if _is_there(path)]
    if not shards:
        raise MergeError(f"none of the {len(paths)} shards has a run: measure them with --perf-shard and --perf-report")
    night = merge(shards)
    prepare_night(output)
    write_night(output, night)
    print(f"{output} of {number_of(len(shards), 'shard')}: {headline(night)}; {tally(night)}")
    print(*(f"ERROR: {problem}\n" for problem in night.problems), sep="", end="")
    return RED if night.exit_status else GREEN


def _is_there(path: Path) -> bool:
    if path.exists():
        return True
    print(f"gpugate merge: {path} does not exist, so its shard ended before its first case", file=sys.stderr)
    return False


def _read(path: Path) -> ShardRun:
    run = run_file.read_to_decide_again(path)
    run_file.refuse_no_night(path, run)
    return check_shard(path, run)

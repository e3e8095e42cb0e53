"""`gpugate replay PATH`: judges stored runs again and prints the verdicts that change."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpugate.errors import GpugateError, ReplayError
from gpugate.report.view import RunView
from gpugate.results.changes import Flip
from gpugate.results.run import RunResult
from gpugate.results.verdict import outcome_word
from gpugate.session.decide_again import decide_again, find_changes
from gpugate.store import run_file
from gpugate.store.night_files import RUN, find_runs
from gpugate.units import number_of

SAME, DIFFERENT, UNUSABLE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 every verdict is the stored one, 1 some differ, 2 a file or an option is unusable"
    parser.add_argument(
        "path", metavar="PATH", type=Path, help="a run that --perf-json wrote, or a folder of such *.json or of nights"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints every run that can be judged, in their order of time, and names on stderr each file that cannot. Raises
    OptionError for a path without a run."""
    decided: dict[Path, tuple[RunResult, tuple[Flip, ...]]] = {}
    refused: list[str] = []
    for path in find_runs(arguments.path):
        try:
            decided[path] = _decide(path)
        except GpugateError as error:
            refused.append(str(error))
    for path in sorted(decided, key=lambda path: decided[path][0].started):
        print(*_describe(path, *decided[path]), sep="\n  ")
    different = sum(len(changes) for _, changes in decided.values())
    if decided:
        print(f"{number_of(len(decided), 'run')}: {number_of(different, 'verdict')} now other than stored")
    for sentence in refused:
        print(f"gpugate replay: {sentence}", file=sys.stderr)
    return UNUSABLE if refused else DIFFERENT if different else SAME


def _decide(path: Path) -> tuple[RunResult, tuple[Flip, ...]]:
    """A stored run, judged again, and its changed verdicts."""
    stored = run_file.read(path)
    run_file.refuse_other_version(path, stored)
    try:
        decided = decide_again(stored)
    except ReplayError as error:
        raise ReplayError(f"{path} cannot be used because {error}") from error
    return decided, find_changes(stored, decided)


def _describe(path: Path, decided: RunResult, changes: Sequence[Flip]) -> list[str]:
    """The run in one line, and below it what limits it, and each changed verdict."""
    view, name = RunView(decided), path.resolve().parent.name if path.name == RUN else path.name
    head = f"{decided.started_at}  {name}  {decided.environment.device_name}: {view.tally}"
    return [head, *filter(None, (view.fault, view.interruption)), *map(_describe_change, changes)]


def _describe_change(change: Flip) -> str:
    """Returns text such as `speedup of net/fast/cuda: PASS -> REGRESSED`."""
    was, now = map(outcome_word, (change.before, change.after))
    text = f"{was} -> {now}" if was != now else f"{now}, with another reason or other numbers"
    return f"{change.check} of {change.case_id}: {text}"

"""`gpugate replay PATH`: judges stored runs again and prints the verdicts that change."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from gpugate.errors import GpugateError, ReplayError
from gpugate.judging.decide_again import decide_again, find_changes
from gpugate.report.table import Column, Table
from gpugate.report.terminal import render_text, stdout_takes_colour, terminal_columns
from gpugate.report.view import RunView
from gpugate.results.changes import Flip
from gpugate.results.run import RunResult
from gpugate.results.verdict import outcome_word
from gpugate.store import run_file
from gpugate.store.night_files import RUN, find_runs
from gpugate.units import number_of

SAME, DIFFERENT, UNUSABLE = 0, 1, 2


@dataclass(frozen=True)
class ReplayedRun:
    """One stored run, judged again, and its changed verdicts."""

    file: str
    decided: RunResult
    changes: tuple[Flip, ...]

    @property
    def started(self) -> datetime.datetime:
        return datetime.datetime.fromisoformat(self.decided.started_at)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 every verdict is the stored one, 1 some differ, 2 a file or an option is unusable"
    parser.add_argument(
        "path", metavar="PATH", type=Path, help="a run that --perf-json wrote, or a folder of such *.json or of nights"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints every run that can be judged, and names on stderr each file that cannot. Raises ReplayError for a path
    without a run."""
    nights: list[ReplayedRun] = []
    refused: list[str] = []
    for path in _paths(arguments.path):
        try:
            nights.append(_night(path))
        except GpugateError as error:
            refused.append(str(error))
    nights.sort(key=lambda night: night.started)
    if nights:
        width = terminal_columns()
        sys.stdout.write(render_text(_parts(nights, width), width, stdout_takes_colour()))
    for sentence in refused:
        print(f"gpugate replay: {sentence}", file=sys.stderr)
    if refused:
        return UNUSABLE
    return DIFFERENT if any(night.changes for night in nights) else SAME


def _paths(path: Path) -> list[Path]:
    paths = find_runs(path)
    if not paths:
        wanted = "the folder that --perf-json wrote runs to, or the one of your nights"
        raise ReplayError(f"{path} contains no *.json and no night with its {RUN}: give {wanted}")
    return paths


def _night(path: Path) -> ReplayedRun:
    stored = run_file.read_to_decide_again(path)
    try:
        decided = decide_again(stored)
    except ReplayError as error:
        raise ReplayError(f"{path} cannot be used because {error}") from error
    return ReplayedRun(
        path.resolve().parent.name if path.name == RUN else path.name, decided, find_changes(stored, decided)
    )


def _parts(nights: Sequence[ReplayedRun], width: int) -> Iterator[RenderableType]:
    yield from _runs(nights).rich(width)
    yield Text()
    different = sum(len(night.changes) for night in nights)
    runs = number_of(len(nights), "run")
    yield Text(f"{runs}: {number_of(different, 'verdict')} now other than stored")


def _runs(nights: Sequence[ReplayedRun]) -> Table:
    rows = []
    for night in nights:
        decided = night.decided
        view = RunView(decided)
        warnings = [words for words in (view.fault, view.interruption) if words]
        lines = [view.tally, *warnings, *map(_words, night.changes)]
        rows.append((f"{decided.started_at}\n{night.file}", decided.environment.device_name, "\n".join(lines)))
    headings = ("run", "machine", "decided again")
    return Table("", tuple(Column(heading, left=True) for heading in headings), tuple(rows))


def _words(change: Flip) -> str:
    """Returns text such as `speedup of net/fast/cuda: PASS -> REGRESSED`."""
    was, now = map(outcome_word, (change.before, change.after))
    text = f"{was} -> {now}" if was != now else f"{now}, with another reason or other numbers"
    return f"{change.check} of {change.case_id}: {text}"

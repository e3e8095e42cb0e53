"""`gpugate replay PATH`: judges stored runs again and prints the verdicts that change."""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from gpugate.errors import GpugateError, OptionError, ReplayError
from gpugate.judging.decide_again import decide_again, find_changes
from gpugate.report.table import Column, Table
from gpugate.report.terminal import render_text, stdout_takes_colour, terminal_columns
from gpugate.report.view import below_floor, interruption, mutation, tally
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
    parser.add_argument(
        "--tolerance",
        metavar="PERCENT",
        help="how far a speedup may fall short of the recorded one (default: as each run was decided)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints every run that can be judged, and names on stderr each file that cannot. Raises OptionError for an invalid
    tolerance, and ReplayError for a path without a run."""
    tolerance = None if arguments.tolerance is None else _read_share(arguments.tolerance)
    nights: list[ReplayedRun] = []
    refused: list[str] = []
    for path in _paths(arguments.path):
        try:
            nights.append(_night(path, tolerance))
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


def _read_share(text: str) -> float:
    """0.02 for `2`, a number of percent. Raises OptionError for what tolerates nothing or all."""
    try:
        value = float(text) / 100
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise OptionError(f"--tolerance is {text!r}: give a number of percent above 0 and below 100, such as 2")
    return value


def _night(path: Path, tolerance: float | None) -> ReplayedRun:
    stored = run_file.read_to_decide_again(path)
    try:
        decided = decide_again(stored, tolerance)
    except ReplayError as error:
        raise ReplayError(f"{path} cannot be used because {error}") from error
    return ReplayedRun(
        path.resolve().parent.name if path.name == RUN else path.name, decided, find_changes(stored, decided)
    )


def _parts(nights: Sequence[ReplayedRun], width: int) -> Iterator[RenderableType]:
    yield from _runs(nights).rich(width)
    yield Text()
    # The newest baseline describes best which slowdowns the machine resolves now.
    warning = next((words for night in reversed(nights) if (words := below_floor(night.decided))), None)
    if warning is not None:
        yield Text(warning, style="yellow", overflow="fold")
    different = sum(len(night.changes) for night in nights)
    runs = number_of(len(nights), "run")
    yield Text(f"{runs}: {number_of(different, 'verdict')} now other than stored")


def _runs(nights: Sequence[ReplayedRun]) -> Table:
    rows = []
    for night in nights:
        decided = night.decided
        warnings = [words for words in (mutation(decided), interruption(decided)) if words]
        lines = [tally(decided), *warnings, *map(_words, night.changes)]
        rows.append((f"{decided.started_at}\n{night.file}", decided.environment.device_name, "\n".join(lines)))
    headings = ("run", "machine", "decided again")
    return Table("", tuple(Column(heading, left=True) for heading in headings), tuple(rows))


def _words(change: Flip) -> str:
    """Returns text such as `speedup of net/fast/cuda: PASS -> REGRESSED`."""
    was, now = map(outcome_word, (change.before, change.after))
    text = f"{was} -> {now}" if was != now else f"{now}, with another reason or other numbers"
    return f"{change.check} of {change.case_id}: {text}"

"""`gpugate diff A B`: what became of every case between two stored runs, and the likely cause."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpugate import run_file
from gpugate.autopsy.autopsy import Autopsy, autopsy
from gpugate.case_states import optimized_side
from gpugate.codec import pretty, to_json, with_header
from gpugate.errors import ReplayError
from gpugate.report.terminal import printed, stdout_takes_colour, terminal_columns
from gpugate.result import RunResult

FORMAT = "gpugate-diff"
# History: 1: an autopsy of every case that both runs measured, by its id.
FORMAT_VERSION = 1
RUN_NAME = "run.json"  # of a night, in a folder of its own


class Became(NamedTuple):
    """What became of one case, and by what share its step got longer."""

    case_id: str
    longer: float
    autopsy: Autopsy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0, whatever differs; 2 a file cannot be used, or the two have no case in common"
    which = f"a run that --perf-json wrote, or the folder of a night with its {RUN_NAME}"
    parser.add_argument("before", metavar="A", type=Path, help=which)
    parser.add_argument("after", metavar="B", type=Path, help="another one, of the same machine or not")
    parser.add_argument("-k", metavar="WORDS", default="", help="only the cases whose id holds this (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of paragraphs")


def run(arguments: argparse.Namespace) -> int:
    """Prints what differs, what got slower the most first. Raises RunFileError for a file that cannot be used, and
    ReplayError where nothing can be compared."""
    before, after = (_read(path) for path in (arguments.before, arguments.after))
    found = [one for one in differences(before, after, arguments.before.name) if arguments.k in one.case_id]
    if not found:
        selected = f" whose id holds {arguments.k!r}" if arguments.k else ""
        raise ReplayError(f"{arguments.before} and {arguments.after} measured no case in common{selected}: give others")
    if arguments.json:
        body = {"cases": {one.case_id: to_json(one.autopsy) for one in found}}
        sys.stdout.write(pretty(with_header(FORMAT, FORMAT_VERSION, body)) + "\n")
    else:
        parts = [*_another_machine(before, after), *(part for one in found for part in _paragraph(one))]
        sys.stdout.write(printed(parts, terminal_columns(), stdout_takes_colour()))
    return 0


def _read(path: Path) -> RunResult:
    return run_file.read(path / RUN_NAME if path.is_dir() else path)


def differences(before: RunResult, after: RunResult, against: str) -> list[Became]:
    """Of every case that both measured."""
    found = []
    for case_id, case in after.cases.items():
        now = optimized_side(case)
        then = optimized_side(before.cases[case_id]) if case_id in before.cases else None
        if then is not None and now is not None:
            found.append(Became(case_id, now.step_ms / then.step_ms - 1, autopsy(then, now, against)))
    return sorted(found, key=lambda one: -one.longer)


def _another_machine(before: RunResult, after: RunResult) -> Iterator[RenderableType]:
    names = [run.environment.device_name for run in (before, after)]
    if names[0] != names[1]:
        yield Text(f"measured on two machines: {names[0]} and {names[1]}", style="yellow", overflow="fold")
        yield Text()


def _paragraph(one: Became) -> Iterator[RenderableType]:
    yield Text(one.case_id, style="bold", overflow="fold")
    for line in one.autopsy.told:
        yield Padding(Text(line, overflow="fold"), (0, 0, 0, 2))

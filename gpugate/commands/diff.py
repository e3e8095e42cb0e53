"""`gpugate diff A B`: the change of every case between two runs, and its likely cause."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from gpugate import units
from gpugate.errors import ReplayError
from gpugate.explaining.autopsy import autopsy, optimized_side
from gpugate.report.terminal import indent, print_parts
from gpugate.results.case import CaseResult, summarize_decider
from gpugate.results.changes import Changes
from gpugate.results.run import RunResult, night_of
from gpugate.results.verdict import Outcome, outcome_word
from gpugate.store import run_file
from gpugate.store.night_files import RUN, run_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0, whatever differs; 2 a file cannot be used, or the two have no case in common"
    which = f"a run that --perf-json wrote, or the folder of a night with its {RUN}"
    parser.add_argument("before", metavar="A", type=Path, help=which)
    parser.add_argument("after", metavar="B", type=Path, help="another run or night, of this or another machine")


def run(arguments: argparse.Namespace) -> int:
    """Prints the differences, the largest slowdown first. Raises RunFileError for a file that cannot be used, and
    ReplayError where nothing can be compared."""
    first, second = arguments.before, arguments.after
    before, after = (run_file.read(run_path(path)) for path in (first, second))
    found = sorted(_compare(before, after, first.name), key=lambda one: -one[0])
    if not found:
        raise ReplayError(f"{first} and {second} measured no case in common: give others")
    warnings = [Text(words, style="yellow", overflow="fold") for words in _warn(first, before, second, after)]
    print_parts([*warnings, *([Text()] if warnings else []), *(part for _, parts in found for part in parts)])
    return 0


def _compare(before: RunResult, after: RunResult, against: str) -> Iterator[tuple[float, list[RenderableType]]]:
    """Yields the share by which the step of each case of both runs got longer, and the paragraph about it."""
    for case_id in (name for name in after.cases if name in before.cases):
        cases = before.cases[case_id], after.cases[case_id]
        then, now = map(optimized_side, cases)
        if then is not None and now is not None:
            lines = [*_describe_verdicts(*cases), *autopsy(then, now, against).sentences]
            parts = [Text(case_id, style="bold", overflow="fold"), *(indent(line, 2) for line in lines)]
            yield now.step_ms / then.step_ms, parts


def _warn(first: Path, before: RunResult, second: Path, after: RunResult) -> Iterator[str]:
    """Yields a warning for each condition under which times and causes say little, and the cases of one run alone."""
    changes = Changes(night_of(before), night_of(after))
    runs = (f"A ({first.name})", before, changes.lost), (f"B ({second.name})", after, changes.gained)
    for which, run, _ in runs:
        if run.mutated:
            yield f"{which} was mutated by {run.mutated}: its optimized sides have this fault on purpose"
        sick = [name for name, case in run.cases.items() if case.worst is Outcome.ENV_INVALID]
        if sick:
            names = units.list_names(sick)
            yield f"{which} has no evidence of {names} (ENV_INVALID): the machine was not well, so measure again"
    match = changes.environment
    if match.differences:
        what = "on two machines" if match.kind == "foreign" else "with other software or settings"
        yield f"measured {what}: {'; '.join(match.differences)}"
    if changes.edited:
        yield f"measured of another source: {units.list_names(changes.edited)}"
    for which, _, alone in runs:
        if alone:
            yield f"measured in {which} only: {units.list_names(alone)}"


def _describe_verdicts(before: CaseResult, after: CaseResult) -> Iterator[str]:
    """Yields `verdict: PASS -> REGRESSED; speedup: 3.00x (2.99..3.01) -> 2.80x (2.79..2.81)`, and the moved side."""
    found = [decided for case in (before, after) if (decided := summarize_decider(case)) is not None]  # both have times
    words = [outcome_word(case.worst) for case in (before, after)]
    verdict = f"{words[0]} in both" if words[0] == words[1] else " -> ".join(words)
    speedups = [summary.speedup for summary in found]
    intervals = [f"{units.ratio(each.median)} ({units.interval(each.low, each.high)})" for each in speedups]
    yield f"verdict: {verdict}; speedup: {' -> '.join(intervals)}"
    optimized, reference = (
        " -> ".join(units.milliseconds(each.median) for each in times)
        for times in zip(*((summary.optimized_ms, summary.reference_ms) for summary in found), strict=True)
    )
    yield f"optimized {optimized}, reference {reference}"

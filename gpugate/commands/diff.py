"""`gpugate diff A B`: the change of every case between two runs, and its likely cause."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from gpugate import units
from gpugate.errors import ReplayError
from gpugate.explaining.autopsy import autopsy, optimized_side
from gpugate.report.terminal import indent, print_parts
from gpugate.results.autopsy import Autopsy
from gpugate.results.case import CaseResult, decider
from gpugate.results.changes import Changes, facts_of_run
from gpugate.results.run import RunResult
from gpugate.results.verdict import Outcome, outcome_word
from gpugate.store import run_file
from gpugate.store.night_files import RUN, run_path

MOST_NAMED = 5
ANOTHER_MACHINE = "measured on two machines"


class CaseChange(NamedTuple):
    """The change of one case: its autopsy, the share by which its step got longer, and the case in both runs."""

    case_id: str
    longer: float
    autopsy: Autopsy
    before: CaseResult
    after: CaseResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0, whatever differs; 2 a file cannot be used, or the two have no case in common"
    which = f"a run that --perf-json wrote, or the folder of a night with its {RUN}"
    parser.add_argument("before", metavar="A", type=Path, help=which)
    parser.add_argument("after", metavar="B", type=Path, help="another one, of the same machine or not")
    parser.add_argument(
        "-k",
        metavar="WORDS",
        default="",
        help="only the cases whose id contains this, in upper or lower case (default: all)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the differences, the largest slowdown first. Raises RunFileError for a file that cannot be used, and
    ReplayError where nothing can be compared."""
    first, second = arguments.before, arguments.after
    found, warnings = _compare(first, second, arguments.k.lower())
    if not found:
        selected = f" whose id contains {arguments.k!r}" if arguments.k else ""
        raise ReplayError(f"{first} and {second} measured no case in common{selected}: give others")
    print_parts([*_render_warnings(warnings), *(part for one in found for part in _paragraph(one))])
    return 0


def _compare(first: Path, second: Path, part: str) -> tuple[list[CaseChange], list[str]]:
    before, after = (run_file.read(run_path(path)) for path in (first, second))
    found = [one for one in differences(before, after, first.name) if part in one.case_id.lower()]
    changes = Changes(facts_of_run(before), facts_of_run(after))
    return found, [
        *_warn_of_run(f"A ({first.name})", before, found),
        *_warn_of_run(f"B ({second.name})", after, found),
        *_another_environment(changes, {after.cases[one.case_id].workload for one in found}),
        *_only(f"A ({first.name})", [name for name in changes.lost if part in name.lower()]),
        *_only(f"B ({second.name})", [name for name in changes.gained if part in name.lower()]),
    ]


def differences(before: RunResult, after: RunResult, against: str) -> list[CaseChange]:
    """Returns the change of every case that both runs measured."""
    found = []
    for case_id, case in after.cases.items():
        now = optimized_side(case)
        then = optimized_side(before.cases[case_id]) if case_id in before.cases else None
        if then is not None and now is not None:
            longer, explanation = now.step_ms / then.step_ms - 1, autopsy(then, now, against)
            found.append(CaseChange(case_id, longer, explanation, before.cases[case_id], case))
    return sorted(found, key=lambda one: -one.longer)


def _warn_of_run(which: str, run: RunResult, found: Sequence[CaseChange]) -> Iterator[str]:
    """Warnings where the run has a fault on purpose, or the machine was not well in one of the compared cases, whose
    times and cause then say little."""
    if run.mutated:
        yield f"{which} was mutated by {run.mutated}: its optimized sides have this fault on purpose"
    sick = [one.case_id for one in found if run.cases[one.case_id].worst is Outcome.ENV_INVALID]
    if sick:
        names = units.list_names(sick, MOST_NAMED)
        yield f"{which} has no evidence of {names} (ENV_INVALID): the machine was not well, so measure again"


def _another_environment(changes: Changes, workloads: Collection[str]) -> Iterator[str]:
    match = changes.environment
    if match.differences:
        what = ANOTHER_MACHINE if match.kind == "foreign" else "measured with other software or settings"
        yield f"{what}: {'; '.join(match.differences)}"
    edited = [name for name in changes.edited if name in workloads]
    if edited:
        yield f"measured of another source: {units.list_names(edited, MOST_NAMED)}"


def _only(which: str, alone: Sequence[str]) -> Iterator[str]:
    if alone:
        yield f"measured in {which} only: {units.list_names(alone, MOST_NAMED)}"


def _render_warnings(warnings: Sequence[str]) -> Iterator[RenderableType]:
    for warning in warnings:
        yield Text(warning, style="yellow", overflow="fold")
    if warnings:
        yield Text()


def _paragraph(one: CaseChange) -> Iterator[RenderableType]:
    yield Text(one.case_id, style="bold", overflow="fold")
    for line in (*_describe_verdicts(one), *one.autopsy.sentences):
        yield indent(line, 2)


def _describe_verdicts(one: CaseChange) -> Iterator[str]:
    """Yields `verdict: PASS -> REGRESSED; speedup: 3.00x (2.99..3.01) -> 2.80x (2.79..2.81)`, and the moved side."""
    cases = one.before, one.after
    found = [decided.summary for case in cases if (decided := decider(case)) is not None]
    if len(found) < 2:
        return
    words = [outcome_word(case.worst) for case in cases]
    verdict = f"{words[0]} in both" if words[0] == words[1] else " -> ".join(words)
    speedups = [summary.speedup for summary in found]
    intervals = [f"{units.ratio(each.median)} ({units.interval(each.low, each.high)})" for each in speedups]
    yield f"verdict: {verdict}; speedup: {' -> '.join(intervals)}"
    optimized, reference = (
        " -> ".join(units.milliseconds(each.median) for each in times)
        for times in zip(*((summary.optimized_ms, summary.reference_ms) for summary in found), strict=True)
    )
    yield f"optimized {optimized}, reference {reference}"

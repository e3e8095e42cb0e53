"""A run on a terminal: on one screen, or under `-v` with every figure and reason; and its screen as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from gpugate import units
from gpugate.report.table import style_of
from gpugate.report.terminal import LOG_COLUMNS, code_block, command_line, indent, section
from gpugate.report.view import Finding, RunView

MOST_PARAGRAPHS = 5  # of what needs attention; -v prints all
MOST_NAMED = 3  # cases by name in one sentence
DETAILS = "-v lists all"
_LABEL_COLUMNS = len("yardsticks") + 2


def screen(view: RunView, width: int, detailed: bool = False) -> list[RenderableType]:
    """A run as rich renderables for `width` columns, in the order of reading: on one screen, or `detailed` with every
    figure and reason."""
    table = view.results if detailed else view.overview
    return [
        *_fault(view),
        *(_label(label, parts) for label, parts in view.machine.items() if parts),
        *([Text(), *table.rich(width)] if table.rows else []),
        *(_figures(view, width) if detailed else []),
        *section("needs attention", _attention(view, detailed)),
        *section("autopsy", (_under(name, lines if detailed else lines[:1]) for name, lines in view.autopsies.items())),
        *section("not measured", (_skip(reason, ids, detailed) for reason, ids in view.accepted.items())),
        *_last_lines(view),
    ]


def _figures(view: RunView, width: int) -> list[RenderableType]:
    return [
        *(part for table in view.series for part in table.rich(width)),
        *section("bill", [view.bill.rich(width - 2)] if view.bill.rows else []),
        *section("start-up included", ([indent(words, 2)] for words in view.whole_runs)),
        *section("bounded by", ([indent(words, 2)] for words in view.bounds)),
        *section("why", ([indent(words, 2)] for words in view.reasons)),
    ]


def night_summary(view: RunView) -> str:
    """The headline, and the screen of the run as code."""
    parts = [*(Text(f"ERROR: {problem}", overflow="fold") for problem in view.problems), *screen(view, LOG_COLUMNS)]
    return f"### {view.headline}\n\n{view.run.started_at}\n\n{code_block(parts)}"


def _fault(view: RunView) -> list[RenderableType]:
    """The fault that the session put in on purpose, which no reader may miss."""
    return [Text(view.fault, style="bold red", overflow="fold")] if view.fault else []


def _label(label: str, parts: Sequence[str]) -> RenderableType:
    grid = Grid.grid()
    grid.add_column(width=_LABEL_COLUMNS, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="bold"), Text(", ".join(parts)))
    return grid


def _last_lines(view: RunView) -> list[RenderableType]:
    """The warnings, the fault once more, the gains of optimizations, the worth of verdicts, the cost of a gate, and
    the tally."""
    warned = (Text(words, style="yellow", overflow="fold") for words in view.warnings)
    lines = [*view.gains, *view.worth, *(view.cost if view.run.gate else []), view.ending]
    return [Text(), *warned, *_fault(view), *(Text(line, overflow="fold") for line in lines)]


def _attention(view: RunView, detailed: bool) -> Iterator[list[RenderableType]]:
    failed = [("FAILED", case_id, error) for case_id, error in view.errors.items()]
    for reason, ids in view.refused.items():
        failed.append(("MISSING", units.list_names(ids, len(ids) if detailed else MOST_NAMED), reason))
    found = view.findings if detailed else view.attention
    most = len(failed) + len(found) if detailed else MOST_PARAGRAPHS
    for word, cases, problem in failed[:most]:
        yield [_head(word, f"  {cases}", "bold red"), indent(problem, 4)]
    for one in found[:most]:
        such_as = "such as: " if len(one.case_ids) > 1 else ""
        words = one.sentences if detailed else [f"{such_as}{one.reason}"]
        yield _finding(one, units.list_names(one.case_ids, len(one.case_ids) if detailed else MOST_NAMED), words)
    left_out = len(failed[most:]) + len(found[most:])
    if left_out:
        yield [indent(f"and {left_out} more: {DETAILS}", 2)]


def _finding(found: Finding, cases: str, words: Sequence[str]) -> list[RenderableType]:
    step = f"next: {found.next_step}".splitlines() if found.next_step else []
    return [
        _head(found.outcome.value, f"  {found.checks} of {cases}", style_of(found.outcome)),
        *(indent(line, 4) for line in words),
        *(command_line(line, 4) for line in step),
    ]


def _head(word: str, words: str, style: str) -> RenderableType:
    return Padding(Text.assemble((word, style), words, overflow="fold"), (0, 0, 0, 2))


def _skip(reason: str, case_ids: Sequence[str], detailed: bool) -> list[RenderableType]:
    return _under(f"{units.number_of(len(case_ids), 'case')}: {reason}", case_ids if detailed else [])


def _under(head: str, lines: Sequence[str]) -> list[RenderableType]:
    return [indent(head, 2), *(indent(line, 6) for line in lines)]

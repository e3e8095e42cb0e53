"""The end of a session on the terminal: machine, table, findings, skips, errors. Decides nothing.

The words are ASCII and come as rich `Text`, never as markup: a reason such as `pip install 'x[dev]'` stays whole.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterable, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpugate.report.bounds import bounds, reasons
from gpugate.report.findings import Finding, autopsies, errors, findings, mutation, skips, tally, warnings, worth
from gpugate.report.machine import facts, load, yardsticks
from gpugate.report.rows import results_table
from gpugate.report.series_tables import series_tables
from gpugate.report.table import STYLES
from gpugate.report.whole_runs import whole_runs
from gpugate.results.run import RunResult

LOG_COLUMNS = 140  # where nobody has a window, such as a CI log
_LABEL_COLUMNS = len("yardsticks") + 2
_BLANKS_AT_END = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")  # before an escape that ends a colour, too


def terminal_columns() -> int:
    """`COLUMNS`, or the width of the window, or 140 where there is none."""
    return shutil.get_terminal_size((LOG_COLUMNS, 24)).columns


def stdout_takes_colour() -> bool:
    return Console().color_system is not None


def text(run: RunResult, width: int, colour: bool) -> str:
    """The whole summary as text for any stream; with `colour`, ANSI escapes."""
    return render_text(tables(run, width), width, colour)


def render_text(parts: Iterable[RenderableType], width: int, colour: bool) -> str:
    """The text that rich makes of the parts in `width` columns, without blanks at the end of a line."""
    stream = io.StringIO()
    # Without a height too, rich takes 80 columns wherever TERM is `dumb`.
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=stream, width=width, height=100, force_terminal=colour, color_system=system)
    for part in parts:
        console.print(part, highlight=False)
    return "\n".join(_BLANKS_AT_END.sub(r"\1", line) for line in stream.getvalue().splitlines()) + "\n"


def tables(run: RunResult, width: int) -> list[RenderableType]:
    """The summary as rich renderables for `width` columns, in the order of reading."""
    return [
        *_mutation(run),
        *_machine(run, width),
        *(part for table in (results_table(run), *series_tables(run)) if table.rows for part in table.rich(width)),
        *_section("start-up included", ([_indent(words, 2)] for words in whole_runs(run))),
        *_section("bounded by", ([_indent(words, 2)] for words in bounds(run))),
        *_section("why", ([_indent(words, 2)] for words in reasons(run))),
        *_section("not PASS", (_finding(finding) for finding in findings(run))),
        *_section("autopsy", (_autopsy(case_id, lines) for case_id, lines in autopsies(run).items())),
        *_section("skipped", (_reason(reason, ids) for reason, ids in skips(run).items())),
        *_section("failed", (_error(case_id, error) for case_id, error in errors(run).items())),
        Text(),
        *_last_lines(run),
    ]


def _machine(run: RunResult, width: int) -> list[RenderableType]:
    lines = {"machine": facts(run.environment), "yardsticks": yardsticks(run), "load": load(run)}
    return [_label(label, parts, width) for label, parts in lines.items() if parts]


def _label(label: str, parts: Sequence[str], width: int) -> RenderableType:
    grid = Table.grid()
    grid.add_column(width=_LABEL_COLUMNS, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="bold"), Text(_pack(parts, width - _LABEL_COLUMNS)))
    return grid


def _pack(parts: Sequence[str], width: int) -> str:
    """The parts with commas, broken into lines only between parts: `4.3 TB/s` stays together."""
    lines = [parts[0]]
    for part in parts[1:]:
        if cell_len(f"{lines[-1]}, {part},") <= width:
            lines[-1] += f", {part}"
        else:
            lines[-1] += ","
            lines.append(part)
    return "\n".join(lines)


def _section(title: str, paragraphs: Iterable[Sequence[RenderableType]]) -> list[RenderableType]:
    lines = [line for paragraph in paragraphs for line in paragraph]
    return [Text(), Text(title, style="bold"), *lines] if lines else []


def _finding(finding: Finding) -> list[RenderableType]:
    first, *others = finding.judged
    head = Text.assemble((finding.outcome.value, STYLES[finding.outcome]), f"  {first}", overflow="fold")
    return [
        Padding(head, (0, 0, 0, 2)),
        *(_indent(f"{' ' * len(finding.outcome.value)}  {judged}", 2) for judged in others),
        _indent(finding.reason, 6),
        *([_indent(f"next: {finding.next_step}", 6)] if finding.next_step else []),
    ]


def _autopsy(case_id: str, lines: Sequence[str]) -> list[RenderableType]:
    return [_indent(case_id, 2), *(_indent(line, 6) for line in lines)]


def _reason(reason: str, ids: Sequence[str]) -> list[RenderableType]:
    return [_indent(reason, 2), *(_indent(case_id, 6) for case_id in ids)]


def _error(case_id: str, error: str) -> list[RenderableType]:
    return [Padding(Text(case_id, style="bold red", overflow="fold"), (0, 0, 0, 2)), _indent(error, 6)]


def _indent(words: str, columns: int) -> RenderableType:
    return Padding(Text(words, overflow="fold"), (0, 0, 0, columns))


def _last_lines(run: RunResult) -> list[RenderableType]:
    warned = (Text(words, style="yellow", overflow="fold") for words in warnings(run))
    return [*warned, *_mutation(run), *(Text(words, overflow="fold") for words in (*worth(run), tally(run)))]


def _mutation(run: RunResult) -> list[RenderableType]:
    fault = mutation(run)
    return [Text(fault, style="bold red", overflow="fold")] if fault else []

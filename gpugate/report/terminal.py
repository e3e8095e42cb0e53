"""The end of a session on the terminal: machine, table, findings, skips, errors. Decides nothing.

The words are ASCII and come as rich `Text`, never as markup: a reason such as `pip install 'x[dev]'` stays whole.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpugate.report.bounds import bounds, reasons
from gpugate.report.findings import Finding, autopsies, errors, findings, mutation, skips, tally, warnings
from gpugate.report.machine import facts, load, yardsticks
from gpugate.report.rows import HEADINGS, Row, notes, rows, told_columns
from gpugate.report.series_tables import WordTable, series_tables
from gpugate.report.whole_runs import whole_runs
from gpugate.results.run import RunResult
from gpugate.results.verdict import Outcome

LOG_COLUMNS = 140  # where nobody has a window, such as a CI log
GAP = 2
NARROWEST_NAME = 12
# Columns that a narrow window drops, the least important first. The others always stay.
DROP_ORDER = ("compiling", "of_matmul", "launches", "kernels", "items", "reference", "interval")
STYLES = {
    Outcome.PASS: "green",
    Outcome.IMPROVED: "cyan",
    Outcome.REGRESSED: "bold red",
    Outcome.WRONG: "bold red",
    Outcome.NOT_ENGAGED: "bold red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NO_BASELINE: "yellow",
    Outcome.ENV_INVALID: "yellow",
}
_BLANKS_AT_END = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")  # before an escape that ends a colour, too
_LEFT = ("optimization", "verdict")
# Its dividers are one blank column each, which is the rest of the gap.
RULE_UNDER_HEAD = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def terminal_columns() -> int:
    """`COLUMNS`, or the width of the window, or 140 where there is none."""
    return shutil.get_terminal_size((LOG_COLUMNS, 24)).columns


def stdout_takes_colour() -> bool:
    return Console().color_system is not None


def text(run: RunResult, width: int, colour: bool) -> str:
    """The whole summary as text for any stream; with `colour`, ANSI escapes."""
    return printed(tables(run, width), width, colour)


def printed(parts: Iterable[RenderableType], width: int, colour: bool) -> str:
    """What rich makes of the parts in `width` columns, no line with blanks at its end."""
    stream = io.StringIO()
    # Without a height too, rich takes 80 columns wherever TERM is `dumb`.
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=stream, width=width, height=100, force_terminal=colour, color_system=system)
    for part in parts:
        console.print(part, highlight=False)
    return "\n".join(_BLANKS_AT_END.sub(r"\1", line) for line in stream.getvalue().splitlines()) + "\n"


def tables(run: RunResult, width: int) -> list[RenderableType]:
    """The summary as rich renderables for `width` columns, in the order of reading."""
    made = rows(run)
    return [
        *_mutated(run),
        *_machine(run, width),
        *_results(run, made, width),
        *(line for table in series_tables(run) for line in _series(table)),
        *_section("start-up included", ([_indented(words, 2)] for words in whole_runs(run))),
        *_section("bounded by", ([_indented(words, 2)] for words in bounds(run))),
        *_section("why", ([_indented(words, 2)] for words in reasons(run))),
        *_section("not PASS", (_finding(finding) for finding in findings(run))),
        *_section("autopsy", (_autopsy(case_id, lines) for case_id, lines in autopsies(run).items())),
        *_section("skipped", (_reason(reason, ids) for reason, ids in skips(run).items())),
        *_section("failed", (_error(case_id, error) for case_id, error in errors(run).items())),
        Text(),
        *_closing(run),
    ]


def _machine(run: RunResult, width: int) -> list[RenderableType]:
    lines = {"machine": facts(run.environment), "yardsticks": yardsticks(run), "load": load(run)}
    return [_labelled(label, parts, width) for label, parts in lines.items() if parts]


def _labelled(label: str, parts: Sequence[str], width: int) -> RenderableType:
    grid = Table.grid(padding=(0, GAP))
    grid.add_column(width=len("yardsticks"), no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="bold"), Text(_packed(parts, width - len("yardsticks") - GAP)))
    return grid


def _packed(parts: Sequence[str], width: int) -> str:
    """The parts with commas, broken into lines only between parts: `4.3 TB/s` stays together."""
    lines = [parts[0]]
    for part in parts[1:]:
        if cell_len(f"{lines[-1]}, {part},") <= width:
            lines[-1] += f", {part}"
        else:
            lines[-1] += ","
            lines.append(part)
    return "\n".join(lines)


def _results(run: RunResult, made: Sequence[Row], width: int) -> list[RenderableType]:
    shown, dropped = _columns(made, width)
    grouped = groupby(made, key=lambda row: row.group)
    lines: list[RenderableType] = []
    for group, members in grouped:
        lines += [Text(), Text(group, style="bold", overflow="fold"), _table(list(members), shown)]
    told = notes(run, made, shown) if made else []
    if dropped:
        told.append(f"left out at {width} columns: {', '.join(HEADINGS[name] for name in dropped)}")
    return [*lines, *([Text()] if told else []), *(Text(note, style="dim", overflow="fold") for note in told)]


def _columns(made: Sequence[Row], width: int) -> tuple[dict[str, int], list[str]]:
    """Widths of the columns that fit, by name, and the names of those that had to go."""
    widths = {name: max(map(cell_len, [HEADINGS[name], *_cells(made, name)])) for name in told_columns(made)}
    dropped: list[str] = []
    for name in DROP_ORDER:
        if _total(widths) <= width:
            break
        if widths.pop(name, None) is not None:
            dropped.insert(0, name)
    if widths and (excess := _total(widths) - width) > 0:
        widths["optimization"] = max(NARROWEST_NAME, widths["optimization"] - excess)
    return widths, dropped


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _cells(made: Sequence[Row], name: str) -> list[str]:
    """Every line of every cell of a column."""
    return [line for row in made for line in _cell(row, name).plain.splitlines()]


def _cell(row: Row, name: str) -> Text:
    if name == "verdict" and row.outcome:
        return Text(row.verdict, style=STYLES[row.outcome])
    if name == "optimization" and row.versus:
        return Text.assemble(row.optimization, (f"\n  vs {row.versus}", "dim"))
    return Text(getattr(row, name))


def _table(members: Sequence[Row], shown: dict[str, int]) -> Table:
    table = _plain_table()
    for name, columns in shown.items():
        side = "left" if name in _LEFT else "right"
        table.add_column(HEADINGS[name], width=columns, overflow="fold", justify=side)  # type: ignore[arg-type]
    for row in members:
        table.add_row(*(_cell(row, name) for name in shown))
    return table


def _plain_table() -> Table:
    return Table(box=RULE_UNDER_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False, header_style="")


def _series(words: WordTable) -> list[RenderableType]:
    table = _plain_table()
    for number, heading in enumerate(words.headings):
        table.add_column(heading, overflow="fold", justify="right" if number else "left")
    for row in words.rows:
        table.add_row(*map(Text, row))
    below = (Text(line, style="dim", overflow="fold") for line in words.below)
    return [Text(), Text(words.title, style="bold", overflow="fold"), table, *below]


def _section(title: str, paragraphs: Iterable[Sequence[RenderableType]]) -> list[RenderableType]:
    lines = [line for paragraph in paragraphs for line in paragraph]
    return [Text(), Text(title, style="bold"), *lines] if lines else []


def _finding(finding: Finding) -> list[RenderableType]:
    first, *others = finding.judged
    head = Text.assemble((finding.outcome.value, STYLES[finding.outcome]), f"  {first}", overflow="fold")
    return [
        Padding(head, (0, 0, 0, 2)),
        *(_indented(f"{' ' * len(finding.outcome.value)}  {judged}", 2) for judged in others),
        _indented(finding.reason, 6),
        *([_indented(f"next: {finding.next_step}", 6)] if finding.next_step else []),
    ]


def _autopsy(case_id: str, lines: Sequence[str]) -> list[RenderableType]:
    return [_indented(case_id, 2), *(_indented(line, 6) for line in lines)]


def _reason(reason: str, ids: Sequence[str]) -> list[RenderableType]:
    return [_indented(reason, 2), *(_indented(case_id, 6) for case_id in ids)]


def _error(case_id: str, error: str) -> list[RenderableType]:
    return [Padding(Text(case_id, style="bold red", overflow="fold"), (0, 0, 0, 2)), _indented(error, 6)]


def _indented(words: str, columns: int) -> RenderableType:
    return Padding(Text(words, overflow="fold"), (0, 0, 0, columns))


def _closing(run: RunResult) -> list[RenderableType]:
    warned = (Text(words, style="yellow", overflow="fold") for words in warnings(run))
    return [*warned, *_mutated(run), Text(tally(run), overflow="fold")]


def _mutated(run: RunResult) -> list[RenderableType]:
    said = mutation(run)
    return [Text(said, style="bold red", overflow="fold")] if said else []

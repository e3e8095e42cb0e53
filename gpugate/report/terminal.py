"""Rendering of a report for a terminal: its width, its colours, and the paragraphs that reports are made of.

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

from gpugate.report.cost import describe_cost
from gpugate.report.findings import mutation, tally, warnings, worth
from gpugate.report.machine import facts, load, yardsticks
from gpugate.results.run import RunResult

LOG_COLUMNS = 140  # where nobody has a window, such as a CI log
_LABEL_COLUMNS = len("yardsticks") + 2
_BLANKS_AT_END = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")  # before an escape that ends a colour, too


def terminal_columns() -> int:
    """`COLUMNS`, or the width of the window, or 140 where there is none."""
    return shutil.get_terminal_size((LOG_COLUMNS, 24)).columns


def stdout_takes_colour() -> bool:
    return Console().color_system is not None


def render_text(parts: Iterable[RenderableType], width: int, colour: bool) -> str:
    """The text that rich makes of the parts in `width` columns, without blanks at the end of a line."""
    stream = io.StringIO()
    # Without a height too, rich takes 80 columns wherever TERM is `dumb`.
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=stream, width=width, height=100, force_terminal=colour, color_system=system)
    for part in parts:
        console.print(part, highlight=False)
    return "\n".join(_BLANKS_AT_END.sub(r"\1", line) for line in stream.getvalue().splitlines()) + "\n"


def machine_lines(run: RunResult, width: int) -> list[RenderableType]:
    """The machine, its ceilings and its load, with a label each."""
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


def section(title: str, paragraphs: Iterable[Sequence[RenderableType]]) -> list[RenderableType]:
    """A blank line, the title and the paragraphs; nothing without paragraphs."""
    lines = [line for paragraph in paragraphs for line in paragraph]
    return [Text(), Text(title, style="bold"), *lines] if lines else []


def indent(words: str, columns: int) -> RenderableType:
    return Padding(Text(words, overflow="fold"), (0, 0, 0, columns))


def fault_line(run: RunResult) -> list[RenderableType]:
    """The fault that the session put into every optimized side, which no reader may miss."""
    fault = mutation(run)
    return [Text(fault, style="bold red", overflow="fold")] if fault else []


def last_lines(run: RunResult, gains: Sequence[str] = ()) -> list[RenderableType]:
    """The warnings, the fault once more, the `gains` of optimizations, the worth of verdicts, the cost of a gate, and
    the tally."""
    warned = (Text(words, style="yellow", overflow="fold") for words in warnings(run))
    cost = describe_cost(run) if run.gate else []
    words = (Text(line, overflow="fold") for line in (*gains, *worth(run), *cost, tally(run)))
    return [*warned, *fault_line(run), *words]

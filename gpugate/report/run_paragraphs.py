"""The paragraphs of a run on a terminal: its machine, its fault on purpose, and its last lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpugate.report.cost import describe_cost
from gpugate.report.findings import mutation, tally, warnings, worth
from gpugate.report.machine import facts, load, yardsticks
from gpugate.results.run import RunResult

_LABEL_COLUMNS = len("yardsticks") + 2


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

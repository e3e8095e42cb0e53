"""One table of words, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from rich.box import Box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from gpugate.results.verdict import Outcome

# The state of a verdict or a finding by its first word: a colour here, a class and a sign on a page.
STATES: Mapping[str, str] = {
    Outcome.PASS: "good",
    Outcome.IMPROVED: "better",
    Outcome.REGRESSED: "bad",
    Outcome.WRONG: "bad",
    Outcome.NOT_ENGAGED: "bad",
    Outcome.UNDECIDED: "open",
    Outcome.NO_BASELINE: "open",
    Outcome.ENV_INVALID: "open",
    "FAILED": "bad",
    "MISSING": "bad",
    "SLOWER": "bad",
    "FASTER": "better",
    "SAME": "good",
    "ok": "good",
    "absent": "absent",
    "bad": "bad",
}
COLOURS = {"good": "green", "better": "cyan", "bad": "bold red", "open": "yellow", "absent": "dim"}


def style_of(words: str) -> str:
    """The style of a terminal for a cell that begins with a word of STATES, else none."""
    return COLOURS.get(STATES.get(words.partition(" ")[0], ""), "")


NARROWEST_NAME = 8
GAP = 2  # blanks between two columns
# Its dividers are one blank each: the last one of a gap.
_RULE_UNDER_HEAD = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


@dataclass(frozen=True)
class Column:
    """A heading above cells that begin at the left edge, or else end at the right one. A table has the note of each
    column that it shows. A terminal that is too narrow leaves out the columns with a `rank`, the lowest one first."""

    heading: str
    left: bool = False
    note: str = ""
    rank: int = 0


def columns(*headings: str) -> tuple[Column, ...]:
    """The first column holds names, at the left; all others hold figures, at the right."""
    return tuple(Column(heading, left=number == 0) for number, heading in enumerate(headings))


@dataclass(frozen=True)
class Table:
    """Rows of words, each as long as `columns`. A cell that begins with a word of STATES has its colour.

    The first column of a `grouped` table names the group of a row: a terminal shows it once, above the rows of the
    group.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    grouped: bool = False

    def drop_empty(self) -> Table:
        """The table without the columns in which no row has a word."""
        cells = zip(self.columns, zip(*self.rows, strict=True), strict=True) if self.rows else ()
        return self.drop(*(column.heading for column, words in cells if not any(words)))

    def drop(self, *headings: str) -> Table:
        """The table without these columns."""
        kept = [number for number, column in enumerate(self.columns) if column.heading not in headings]
        rows = tuple(tuple(row[number] for number in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[number] for number in kept), rows=rows)

    def rich(self, width: int) -> list[RenderableType]:
        """The table in at most `width` columns; a note names each column that has no place in them."""
        widths, left_out = self._fit(width)
        parts: list[RenderableType] = []
        for title, rows in groupby(self.rows, key=lambda row: row[0] if self.grouped else self.title):
            table = RichTable(
                box=_RULE_UNDER_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False, header_style=""
            )
            table.show_header = any(column.heading for column in self.columns)
            for number, cells in widths.items():
                side, heading = "left" if self.columns[number].left else "right", Text(self.columns[number].heading)
                table.add_column(heading, width=cells, overflow="fold", justify=side)  # type: ignore[arg-type]
            for row in rows:
                table.add_row(*(Text(row[number], style_of(row[number])) for number in widths))
            parts += [*([Text(), Text(title, "bold", overflow="fold")] if title else []), table]
        notes = self.list_notes(self.columns[number] for number in widths)
        notes += [f"left out at {width} columns: {', '.join(left_out)}"] if left_out else []
        blank = [Text()] if self.grouped and notes else []
        return [*parts, *blank, *(Text(note, "dim", overflow="fold") for note in notes)]

    def list_notes(self, shown: Iterable[Column]) -> list[str]:
        """The notes of the columns that are shown, and those of the table."""
        return [*dict.fromkeys(column.note for column in shown if column.note), *self.notes]

    def _fit(self, width: int) -> tuple[dict[int, int], list[str]]:
        """The width of each column that is shown, by its number, and the headings of those that have no place.

        Where the table is too wide without the latter, names give way, then figures, the widest first.
        """
        cells = zip((column.heading for column in self.columns), *self.rows, strict=True)
        widths = {
            number: max(cell_len(line) for cell in column for line in cell.split("\n"))
            for number, column in enumerate(cells)
            if number or not self.grouped
        }
        left_out = []
        for _, number in sorted((column.rank, number) for number, column in enumerate(self.columns) if column.rank):
            if self._total(widths) > width:
                del widths[number]
                left_out.append(number)
        while self._total(widths) > width and max(widths.values()) > 1:
            names = [number for number in widths if self.columns[number].left and widths[number] > NARROWEST_NAME]
            widths[max(names or widths, key=widths.__getitem__)] -= 1
        return widths, [self.columns[number].heading for number in sorted(left_out)]

    def _total(self, widths: Mapping[int, int]) -> int:
        return sum(widths.values()) + GAP * (len(widths) - 1)

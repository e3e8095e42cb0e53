"""Rendering for a terminal: its width, its colours, sections and indents.

The words come as rich `Text`, never as markup: a reason such as `pip install 'x[dev]'` stays whole. Control
characters in them become visible text.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from gpugate.report.visible_text import Rendered, show_controls

LOG_COLUMNS = 140  # where nobody has a window, such as a CI log
_BLANKS_AT_END = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")  # before an escape that ends a colour, too


@dataclass(frozen=True)
class _Visible:
    part: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from (one._replace(text=show_controls(one.text)) for one in console.render(self.part, options))


def terminal_columns() -> int:
    """`COLUMNS`, or the width of the window, or 140 where there is none."""
    return shutil.get_terminal_size((LOG_COLUMNS, 24)).columns


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Prints the parts in the columns of the terminal, and in colour where it takes them."""
    sys.stdout.write(render_text(parts, terminal_columns(), colour=Console().color_system is not None))


def render_text(parts: Iterable[RenderableType], width: int, colour: bool) -> Rendered:
    """The text that rich makes of the parts in `width` columns, without blanks at the end of a line."""
    stream = io.StringIO()
    # Without a height too, rich takes 80 columns wherever TERM is `dumb`.
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=stream, width=width, height=100, force_terminal=colour, color_system=system)
    for part in parts:
        console.print(_Visible(part), highlight=False, crop=False)
    return Rendered("\n".join(_BLANKS_AT_END.sub(r"\1", line) for line in stream.getvalue().splitlines()) + "\n")


def code_block(parts: Iterable[RenderableType]) -> str:
    """The parts as a block of Markdown's code: the Markdown of a user's error has no effect in it."""
    lines = render_text(parts, LOG_COLUMNS, colour=False).lstrip("\n")
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", lines)), default=0))
    return f"{fence}text\n{lines}{fence}\n"


def section(title: str, paragraphs: Iterable[Sequence[RenderableType]]) -> list[RenderableType]:
    """A blank line, the title and the paragraphs; nothing without paragraphs."""
    lines = [line for paragraph in paragraphs for line in paragraph]
    return [Text(), Text(title, style="bold"), *lines] if lines else []


def command_line(words: str, columns: int) -> RenderableType:
    """One line, however narrow the terminal is: a command that is copied must not contain a line's end."""
    return Text(" " * columns + words, no_wrap=True, overflow="ignore")


def indent(words: str, columns: int) -> RenderableType:
    return Padding(Text(words, overflow="fold"), (0, 0, 0, columns))

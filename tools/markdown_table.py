"""A table of words as GitHub Markdown, for the pages of results/ and docs/."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from gpugate.report.table import Table
from gpugate.report.visible_text import show_controls

# Characters and beginnings of Markdown, of HTML, and of the addresses, mentions and issues that GitHub links.
_LIVE = re.compile(r"[\\`*\[\]<|~&$@#^]|://|www\.|\bgh-\d|(?<![^\W_])_|_(?![^\W_])", re.IGNORECASE)
_CODE = re.compile("`[^`]+`")  # in which nothing works
_WORDS = re.compile("(?:`[^`]*`|[^ `]|`(?![^`]*`))+")
_BLOCK = re.compile(r"\A(?:>\S*|[-+=]+|\d+[.)])(?= |\Z)")  # at a line's start: a quotation, a rule, a list


class Markdown(str):
    """A cell that is Markdown already, of our own words."""

    __slots__ = ()


def write_markdown(table: Table) -> str:
    """The table with its title and the notes about it."""
    title = [f"### {plain(table.title)}"] if table.title else []
    rule = ["---" if column.left else "---:" for column in table.columns]
    head = [_line(_cell(column.heading) for column in table.columns), f"|{'|'.join(rule)}|"]
    body = [_line(map(_cell, row)) for row in table.rows]
    notes = [f"- {plain(note)}" for note in table.list_notes(table.columns)]
    return "\n\n".join("\n".join(block) for block in (title, [*head, *body], notes) if block)


def plain(words: str) -> str:
    """One line of Markdown that shows these words and nothing else. Words that could be a link, a picture, a mention,
    HTML or a format are code, in which none of them works."""
    groups = groupby(_WORDS.findall(_one_line(words)), key=_is_live)
    line = " ".join(code(" ".join(group)) if live else " ".join(group) for live, group in groups)
    return _BLOCK.sub(lambda found: code(found[0]), line)


def code(words: str) -> str:
    """The words as Markdown's code, also where they contain backticks."""
    line = _one_line(words)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    blank = " " if "`" in line else ""
    return f"{fence}{blank}{line}{blank}{fence}"


def _is_live(words: str) -> bool:
    return _LIVE.search(_CODE.sub("", words)) is not None


def _one_line(words: str) -> str:
    return show_controls(" ".join(words.split()))


def _cell(words: str) -> str:
    """A cell that cannot end early; C++ is code as a whole."""
    # A mark such as that of `1.10 ms*` begins no format by itself.
    cell = code(words) if _is_live(words.removesuffix("*")) and not isinstance(words, Markdown) else _one_line(words)
    return re.sub(r"(\\*)\|", r"\1\1\\|", cell)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

"""One table in windows of several widths, and as Markdown that GitHub reads as a table."""

import re

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gpugate.report.table import Column, Table, code, columns, plain
from gpugate.report.terminal import render_text

SIDES = (
    Column("case", left=True),
    Column("time", note="time: of a step"),
    Column("kernels", rank=2, note="kernels: of a step"),
    Column("launches", rank=1, note="launches: of a step"),
)
TABLE = Table("sides", SIDES, (("plain", "36 ms", "216", "216"), ("fused\n  vs plain", "4 ms", "62", "1")), ("a note",))


def lines(table: Table, width: int) -> list[str]:
    return render_text(table.rich(width), width, colour=False).splitlines()


def test_a_narrow_window_leaves_out_columns_and_names_them() -> None:
    assert lines(TABLE, 34)[2].split() == ["case", "time", "kernels"]
    assert lines(TABLE, 34)[8:] == ["kernels: of a step", "a note", "left out at 34 columns: launches"]
    assert lines(TABLE, 20)[2].split() == ["case", "time"]
    assert " ".join(lines(TABLE, 20)).endswith("left out at 20 columns: kernels, launches")


def test_then_names_give_way_before_figures_and_no_letter_is_lost() -> None:
    long = Table("", columns("name", "time"), (("abcdefghijklmnop", "4.00 ms"),))
    assert lines(long, 19)[2:] == ["abcdefghij  4.00 ms", "klmnop"]
    assert "".join(line[:6].strip() for line in lines(long, 14)[2:]) == "abcdefghijklmnop"
    assert max(map(len, lines(long, 5))) <= 5


def test_markdown_has_every_column() -> None:
    words = TABLE.markdown()
    assert words.startswith(
        "### sides\n\n| case | time | kernels | launches |\n|---|---:|---:|---:|\n| plain | 36 ms |"
    )
    assert "| fused vs plain | 4 ms | 62 | 1 |\n\n- time: of a step\n" in words


# --- words of others in Markdown --------------------------------------------------------------------------------------

HOSTILE = [
    "ValueError: ![x](http://evil/x.png) of [x](//evil) and <img src=x onerror=y> at 3.5",
    "@you broke #12 and gh-12, see www.evil.org or me@evil.org or https://evil.org/a_b",
    "**bold** _it_ __init__ ~~gone~~ $x$ ``two`` `",
    r"a\|b a|b \ \\| &lt;b&gt; \x1b",
    "one\ntwo\r\n\n| three |\n---\n# four",
    "> quoted",
    "- item",
    "1. first",
    "--- rule",
    "# title",
]


def inline(markdown: str) -> list[Token]:
    parsed = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    return [token for block in parsed if block.type == "inline" for token in block.children or ()]


@pytest.mark.parametrize("words", HOSTILE)
def test_words_of_others_stay_words_and_a_cell_cannot_end_early(words: str) -> None:
    for write in (plain, code):
        found = inline(f"- {write(words)}")
        assert {token.type for token in found} <= {"text", "code_inline"}
        assert "".join(token.content for token in found) == " ".join(words.split())
        text = "".join(token.content for token in found if token.type == "text").lower()
        assert not any(mark in text for mark in ("@", "#", "://", "www.", "gh-", "<", "&", "$", "`"))
        bare = MarkdownIt("commonmark").parse(write(words))
        assert [block.type for block in bare] == ["paragraph_open", "inline", "paragraph_close"]
    found = inline(Table("", columns("name", "x"), ((words, "end"),)).markdown())
    assert {token.type for token in found} <= {"text", "code_inline"}
    *name, end = (token.content for token in found[2:])
    shown, meant = (re.sub(r"\\+", "/", text) for text in ("".join(name), " ".join(words.split())))
    assert (shown, end) == (meant, "end")  # backslashes before a pipe are more


def test_ordinary_words_are_not_code() -> None:
    words = "2.09x -> 2.10x (+0.5 %), sm_90: whole_run_speedup of a/b/cuda isn't >= 9; 'pip install x'!"
    assert plain(words) == words

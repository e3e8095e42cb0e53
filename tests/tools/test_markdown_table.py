"""A table as Markdown that GitHub reads as a table, and words of others in it."""

import re

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gpugate.report.table import Table, columns
from tests.engine.report.test_table import TABLE
from tools.markdown_table import code, plain, write_markdown


def test_markdown_has_every_column() -> None:
    words = write_markdown(TABLE)
    assert words.startswith(
        "### sides\n\n| case | time | kernels | launches |\n|---|---:|---:|---:|\n| plain | 36 ms |"
    )
    assert "| fused vs plain | 4 ms | 62 | 1 |\n\n- time: of a step\n" in words


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
    found = inline(write_markdown(Table("", columns("name", "x"), ((words, "end"),))))
    assert {token.type for token in found} <= {"text", "code_inline"}
    *name, end = (token.content for token in found[2:])
    shown, meant = (re.sub(r"\\+", "/", text) for text in ("".join(name), " ".join(words.split())))
    assert (shown, end) == (meant, "end")  # backslashes before a pipe are more


def test_ordinary_words_are_not_code() -> None:
    words = "2.09x -> 2.10x (+0.5 %), sm_90: whole_run_speedup of a/b/cuda isn't >= 9; 'pip install x'!"
    assert plain(words) == words

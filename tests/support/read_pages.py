"""A page of HTML as a test reads it: its text, the rows of its tables, and what a browser would load or run."""

from __future__ import annotations

from html.parser import HTMLParser

EMPTY = {"meta", "link", "br", "input", "img", "rect", "circle", "line", "path"}  # elements without an end
BLOCKS = {"td", "th", "dt", "dd", "p", "li", "title", "caption"}
LOADING = {"src", "srcset", "data", "action", "poster", "background", "xlink:href"}


class Page(HTMLParser):
    """`text` is what a person reads, titles of pictures included. `unsafe` are scripts, handlers and addresses."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.rows, self.unsafe = "", list[list[str]](), list[str]()
        self._open: list[str] = []
        self.feed(page.decode())
        self.close()
        self.text = squeeze(self.text)
        self.rows = [[squeeze(cell) for cell in row] for row in self.rows]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in EMPTY:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag in ("script", "iframe", "object", "embed", "img", "base", "form"):
            self.unsafe.append(tag)
        for name, value in attributes:
            inside = name == "href" and (value or "").startswith(("#", "data:,"))
            if name.startswith("on") or name in LOADING or (name == "href" and not inside):
                self.unsafe.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in EMPTY:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self._open[-1:] == [tag], f"</{tag}> ends nothing, at {self.getpos()}"
            self._open.pop()
        if tag in BLOCKS:
            self.text += " "

    def handle_data(self, words: str) -> None:
        if self._open and self._open[-1] == "style":
            return
        self.text += words
        if "tr" in self._open and self.rows[-1]:
            self.rows[-1][-1] += words


def squeeze(words: str) -> str:
    """Words with one blank between them: a browser shows no other white space."""
    return " ".join(words.split())

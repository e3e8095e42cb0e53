"""Text whose control characters are visible: a user's error moves no cursor, hides no other words and sets no link."""

from __future__ import annotations

from typing import Any, TextIO


class Rendered(str):
    """Text for a terminal whose only control characters are our colours."""

    __slots__ = ()


def show_controls(words: str) -> str:
    """The words with an escape such as `\\x1b` in place of each character that a terminal obeys or does not show."""
    return "".join(one if one.isprintable() or one in " \n\t" else ascii(one)[1:-1] for one in words)


class VisibleStream:
    """A text stream on which control characters are visible text, except for what is `Rendered`, and so are characters
    that the stream's encoding lacks."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, words: str) -> int:
        shown = words if isinstance(words, Rendered) else show_controls(words)
        encoding = self._stream.encoding or "utf-8"
        return self._stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

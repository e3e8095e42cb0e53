"""A value whose unpickling runs code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class Touches:
    """A hostile value: unpickling it calls a function, here one that leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.path,)

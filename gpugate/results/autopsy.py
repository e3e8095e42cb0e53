"""The autopsy of a case: the likely cause why its optimized side is slower or wrong, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "stale output",
    "wrong output",
    "work left out",
    "numerics",
    "disproved",
    "leak",
    "no graph",
    "copies",
    "pageable copies",
    "not engaged",
    "synchronization",
    "unfused layers",
    "more kernels",
    "more work after the steps",
    "slower kernels",
    "clocks",
    "slower copies",
    "launch gaps",
    "host",
    "another reference",
    "left to gain",
    "not profiled",
    "nothing",
]


@dataclass(frozen=True)
class Autopsy:
    """A cause with its evidence; `against` names the compared state, `lines` list where time went and what changed."""

    against: str
    kind: Kind
    cause: str
    lines: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The cause, and the lines of evidence."""
        return (f"likely cause, against {self.against}: {self.cause}", *self.lines)

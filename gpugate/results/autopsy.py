"""The autopsy of a case: the likely cause why its optimized side is slower or wrong, in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Autopsy:
    """A cause with its evidence; `against` names the compared state, `lines` list where time went and what changed."""

    against: str
    kind: str  # of the cause, such as `launch gaps`
    cause: str
    lines: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The cause, and the lines of evidence."""
        return (f"likely cause, against {self.against}: {self.cause}", *self.lines)

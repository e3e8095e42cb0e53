"""Types of stored numbers, each with the range of values that mean something: `gpugate.codec` refuses others."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value that mean something; `words` name the range in an error."""

    low: float
    high: float
    words: str


_MOST = 2**53  # a larger whole number is no exact float

Milliseconds = Annotated[float, Range(1e-9, 1e12, "a time from 1e-9 to 1e12 ms")]
Positive = Annotated[float, Range(1e-30, 1e30, "a number from 1e-30 to 1e30")]
Bound = Annotated[float, Range(1e-200, 1e200, "a number above 0")]  # an end of an interval, however wide
NotNegative = Annotated[float, Range(0, sys.float_info.max, "a number from 0 on")]
Share = Annotated[float, Range(0, 1, "a share from 0 to 1")]
Count = Annotated[int, Range(0, _MOST, "a whole number from 0 on")]
Natural = Annotated[int, Range(1, _MOST, "a whole number from 1 on")]
MOST_PROCESSES = 10_000  # of one record, of one command and of one night's checks: each is a process or a case
MOST_SECONDS = 1e6
Processes = Annotated[int, Range(1, MOST_PROCESSES, f"a whole number from 1 to {MOST_PROCESSES}")]


def parse_count(text: str) -> int | None:
    """The number that a user typed, from 1 to MOST_PROCESSES; None for anything else."""
    fits = text.isdecimal() and len(text) <= len(str(MOST_PROCESSES)) and 1 <= int(text) <= MOST_PROCESSES
    return int(text) if fits else None


def parse_seconds(text: str) -> float | None:
    """The seconds that a user typed, above 0 and at most MOST_SECONDS; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= MOST_SECONDS else None

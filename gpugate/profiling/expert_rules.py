"""The expert rules of nsys (`nsys analyze`): what they found in a report, as it says it.

Its text has a part per rule: a line `Processing [...] with [.../RULE.py]...`, a heading ` ** TITLE (RULE):`, advice or
`There were no problems detected ...`, and a table whose columns stand under dashes; or one line `SKIPPED: reason`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpugate.profiling.nsight_tools import Nsys, run_nsys

ANALYZE_S = 300.0
MOST_ROWS = 5
_PROCESSING = re.compile(r"^Processing \[.*\] with \[.*?(\w+)\.py\]", re.MULTILINE)
_HEADING = re.compile(r"^\s*\*\* (?P<title>.+) \(\w+.*\):\s*$", re.MULTILINE)
_DASHES = re.compile(r"-+")
_BLANKS = re.compile(r" {2,}")
_UNDER_A_HEAD = re.compile(r"^ *-+(?: +-+)* *$")
_FINE = "There were no problems detected"


@dataclass(frozen=True)
class Finding:
    """One rule that found something: its advice in one paragraph, and the first rows of its table."""

    rule: str
    title: str
    advice: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    count: int  # of all rows, which nsys limits to 50


def findings(sqlite: Path, nsys: Nsys | None = None) -> tuple[Finding, ...]:
    """Runs nsys's rules over an export. Raises ProfileError where nsys is not there or fails."""
    return parsed(run_nsys(["analyze", "--format", "column", sqlite], ANALYZE_S, nsys))


def parsed(said: str) -> tuple[Finding, ...]:
    """The rules that found something, in the order of nsys; those that were skipped or found nothing say nothing."""
    _, *parts = _PROCESSING.split(said)
    made = (_finding(rule, text) for rule, text in zip(parts[::2], parts[1::2], strict=True))
    return tuple(finding for finding in made if finding is not None)


def _finding(rule: str, text: str) -> Finding | None:
    heading = _HEADING.search(text)
    if heading is None or _FINE in text:
        return None
    lines = text[heading.end() :].splitlines()
    under = next((number for number, line in enumerate(lines) if _UNDER_A_HEAD.match(line)), None)
    words = lines if under is None else lines[: under - 1]
    headings = () if under is None else tuple(_BLANKS.split(lines[under - 1].strip()))
    rows = () if under is None else _rows(lines[under], lines[under + 1 :])
    return Finding(
        rule=rule,
        title=heading["title"],
        advice=" ".join(" ".join(words).split()).replace("%%", "%"),  # which it forgets to format
        headings=headings,
        rows=rows[:MOST_ROWS],
        count=len(rows),
    )


def _rows(dashes: str, below: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The cells under each run of dashes, which headings may miss by a column; the table ends with an empty line."""
    columns = [match.span() for match in _DASHES.finditer(dashes)]
    length = next((number for number, line in enumerate(below) if not line.strip()), len(below))
    return tuple(tuple(line[start:end].strip() for start, end in columns) for line in below[:length])

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
_UNDER_A_HEAD = re.compile(r"^ *-+(?: +-+)* *$", re.MULTILINE)
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
    return parse_rules(run_nsys(["analyze", "--format", "column", sqlite], ANALYZE_S, nsys))


def parse_rules(said: str) -> tuple[Finding, ...]:
    """The rules that found something, in the order of nsys; those that were skipped or found nothing say nothing."""
    _, *parts = _PROCESSING.split(said)
    made = (_finding(rule, text) for rule, text in zip(parts[::2], parts[1::2], strict=True))
    return tuple(finding for finding in made if finding is not None)


def _finding(rule: str, text: str) -> Finding | None:
    heading = _HEADING.search(text)
    if heading is None or _FINE in text:
        return None
    body = text[heading.end() :]
    dashes = _UNDER_A_HEAD.search(body)
    words, names = (body, "") if dashes is None else body[: dashes.start()].rstrip("\n").rsplit("\n", 1)
    rows = () if dashes is None else _rows(dashes[0], body[dashes.end() + 1 :].split("\n\n")[0].splitlines())
    return Finding(
        rule=rule,
        title=heading["title"],
        advice=" ".join(words.split()).replace("%%", "%"),  # nsys forgets to format it
        headings=tuple(re.split(r" {2,}", names.strip())) if names else (),
        rows=rows[:MOST_ROWS],
        count=len(rows),
    )


def _rows(dashes: str, lines: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The cells under each run of dashes, which the headings may miss by a column."""
    columns = [match.span() for match in re.finditer("-+", dashes)]
    return tuple(tuple(line[start:end].strip() for start, end in columns) for line in lines)

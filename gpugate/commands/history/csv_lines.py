"""Nights as CSV, with a line for each night and case. Pure.

Apache Otava reads the lines of one case of one machine as a test whose metrics are columns.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Sequence
from typing import Any

from gpugate.results.night import METRIC_CODES, TIMED, CaseNight, Night

ORIGIN = ("time", "commit", "branch", "machine", "night", "case", "outcome")


def write_csv(nights: Sequence[Night]) -> str:
    """A line for each night and case: its origin, each metric, and the bounds of those that have an interval."""
    bounds = [f"{name}_{bound}" for name in TIMED for bound in ("low", "high")]
    lines = io.StringIO()
    table = csv.DictWriter(lines, [*ORIGIN, *METRIC_CODES, *bounds], lineterminator="\n")
    table.writeheader()
    for night in nights:
        for case in night.cases.values():
            table.writerow(_line(night, case))
    return lines.getvalue()


def _line(night: Night, case: CaseNight) -> dict[str, Any]:
    provenance, outcome = night.provenance, "" if case.outcome is None else case.outcome.value
    origin = (night.started.isoformat(), provenance.commit, provenance.branch, night.machine, night.name)
    line: dict[str, Any] = dict(zip(ORIGIN, map(_as_text, (*origin, case.case_id, outcome)), strict=True))
    for name, metric in case.metrics.items():
        line[name] = metric.value
        if name in TIMED:
            line[f"{name}_low"], line[f"{name}_high"] = metric.low, metric.high
    return line


def _as_text(value: str | None) -> str:
    """A cell of one line that no spreadsheet takes for a formula: an apostrophe stands before what could begin one."""
    text = " ".join((value or "").split())
    return f"'{text}" if unicodedata.normalize("NFKC", text[:1]) in {"=", "+", "-", "@"} else text

"""Nights in the formats of other programs: CSV, PyTorch HUD's benchmark JSON v3, Bencher Metric Format. Pure.

CSV has a line for each night and case: Apache Otava reads the lines of one case of one machine as a test whose metrics
are columns. The HUD's records are those that `upload-benchmark-results` of pytorch/test-infra adds to its database; a
record has one metric. A Bencher report is of one testbed at one moment, so that its document has one night.
"""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from gpugate.errors import OptionError
from gpugate.results.night import METRIC_CODES, TIMED, CaseNight, Metric, Night

HUD_VERSION = "v3"
HUD_NAME = "gpugate"
ORIGIN = ("time", "commit", "branch", "machine", "night", "case", "outcome")


def export(form: str, nights: Sequence[Night]) -> str:
    """The nights in the format `csv`, `hud` or `bencher`. Raises OptionError for several machines in one report."""
    if form == "csv":
        return write_csv(nights)
    document = list(hud_records(nights)) if form == "hud" else bencher_report(nights)
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


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


def hud_records(nights: Sequence[Night]) -> Iterator[dict[str, Any]]:
    """A record for each metric of each case of each night; the workload is the model, the optimization its backend."""
    for night in nights:
        for case in night.cases.values():
            for name, metric in case.metrics.items():
                yield _record(night, case, name, metric)


def _record(night: Night, case: CaseNight, name: str, metric: Metric) -> dict[str, Any]:
    environment, provenance = night.environment, night.provenance
    workload, optimization, kind = case.case_id.rsplit("/", 2)
    target = case.value("recorded_speedup") if name == "speedup" else None
    return {
        "timestamp": int(night.started.timestamp()),
        "schema_version": HUD_VERSION,
        "name": HUD_NAME,
        "repo": provenance.repository or "",
        "head_branch": provenance.branch or "",
        "head_sha": provenance.commit or "",
        "runners": [
            {
                "name": night.machine,
                "type": kind,
                "cpu_info": environment.cpu_model,
                "cpu_count": environment.cpu_count,
                "gpu_info": environment.device_name if kind == "cuda" else "",
                "gpu_count": int(kind == "cuda"),
            }
        ],
        "benchmark": {
            "name": HUD_NAME,
            "mode": "",
            "dtype": "",
            "extra_info": {"device": environment.device_name, "case": case.case_id, "night": night.name},
        },
        "model": {"name": workload, "type": "workload", "backend": optimization},
        "dependencies": {
            package: {"version": version, "repo": "", "branch": "", "sha": ""}
            for package, version in environment.packages.items()
        },
        "metric": {
            "name": name,
            "benchmark_values": [metric.value],
            "target_value": target,
            "extra_info": {} if metric.low is None else {"low": str(metric.low), "high": str(metric.high)},
        },
    }


def bencher_report(nights: Sequence[Night]) -> dict[str, Any]:
    """The newest night: each case is a benchmark, each metric a measure. Raises OptionError for several machines."""
    machines = sorted({night.machine for night in nights})
    if len(machines) > 1:
        raise OptionError(
            f"--export bencher is of one machine, and the nights are of {', '.join(machines)}: give --machine"
        )
    newest = next(night for night in reversed(nights) if night.cases)
    return {
        case.case_id: {name: _measure(metric) for name, metric in case.metrics.items()}
        for case in newest.cases.values()
    }


def _measure(metric: Metric) -> dict[str, float]:
    found = {"value": metric.value, "lower_value": metric.low, "upper_value": metric.high}
    return {name: value for name, value in found.items() if value is not None}

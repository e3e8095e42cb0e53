"""Prints the nights of a store or of folders as PyTorch HUD's benchmark JSON v3, or as a Bencher report.

`python -m tools.history_exports hud` or `bencher` takes the options of `gpugate history` that select nights, and
`--repo`, the name of the repository in the records of the HUD. They are those that `upload-benchmark-results` of
pytorch/test-infra adds to its database; a record has one metric.
A Bencher report is of one testbed at one moment, so that its document has one night.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gpugate.commands.cli import run_command
from gpugate.commands.history import add_selection, select_nights
from gpugate.errors import OptionError
from gpugate.results.run import Night

HUD_VERSION = "v3"
HUD_NAME = "gpugate"
MEASURE = ("value", "lower_value", "upper_value")  # of Bencher


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 printed, 2 no night can be used or an option is wrong."""
    parser = argparse.ArgumentParser(prog="history_exports", description=__doc__)
    parser.add_argument("format", choices=("hud", "bencher"))
    parser.add_argument("--repo", metavar="NAME", default="", help="the repository that the records of the HUD name")
    add_selection(parser)
    parser.set_defaults(run=run, program=parser.prog)
    return run_command(parser, words)


def run(arguments: argparse.Namespace) -> int:
    """Prints the document. Raises as `select_nights` does."""
    nights, _ = select_nights(arguments)
    document = list(hud_records(nights, arguments.repo)) if arguments.format == "hud" else bencher_report(nights)
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
    return 0


def hud_records(nights: Sequence[Night], repository: str) -> Iterator[dict[str, Any]]:
    """A record for each metric of each case of each night; the workload is the model, the optimization its backend."""
    for night in nights:
        for case_id, case in night.cases.items():
            for name, metric in case.metrics.items():
                yield {**_record(night, case_id, name, metric), "repo": repository or night.provenance.repository or ""}


def _record(night: Night, case_id: str, name: str, metric: Sequence[float]) -> dict[str, Any]:
    environment, provenance = night.environment, night.provenance
    workload, optimization, kind = case_id.rsplit("/", 2)
    value, *interval = metric
    target = night.cases[case_id].value("recorded_speedup") if name == "speedup" else None
    return {
        "timestamp": int(night.started.timestamp()),
        "schema_version": HUD_VERSION,
        "name": HUD_NAME,
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
            "extra_info": {"device": environment.device_name, "case": case_id, "night": night.name},
        },
        "model": {"name": workload, "type": "workload", "backend": optimization},
        "dependencies": {
            package: {"version": version, "repo": "", "branch": "", "sha": ""}
            for package, version in environment.packages.items()
        },
        "metric": {
            "name": name,
            "benchmark_values": [value],
            "target_value": target,
            "extra_info": dict(zip(("low", "high"), map(str, interval), strict=False)),
        },
    }


def bencher_report(nights: Sequence[Night]) -> dict[str, Any]:
    """The newest night: each case is a benchmark, each metric a measure. Raises OptionError for several machines."""
    machines = sorted({night.machine for night in nights})
    if len(machines) > 1:
        raise OptionError(
            f"a bencher report is of one machine, and the nights are of {', '.join(machines)}: give --machine"
        )
    newest = next(night for night in reversed(nights) if night.cases)
    return {
        case_id: {name: dict(zip(MEASURE, metric, strict=False)) for name, metric in case.metrics.items()}
        for case_id, case in newest.cases.items()
    }


if __name__ == "__main__":
    sys.exit(main())

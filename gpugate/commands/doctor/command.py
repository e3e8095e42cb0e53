"""`gpugate doctor`: examines this machine in a child process, and prints a diagnosis.

The exit status is 0 only where a gate run can be trusted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gpugate.commands.doctor import measuring
from gpugate.commands.doctor.findings import Diagnosis, list_findings
from gpugate.commands.doctor.measuring import LONGEST_ERROR, Facts
from gpugate.errors import OptionError
from gpugate.machine.children import run_module
from gpugate.report.table import STYLES, Column, Table
from gpugate.report.terminal import render_text, stdout_takes_colour, terminal_columns
from gpugate.report.visible_text import Rendered
from gpugate.session.options import DEFAULT_BASELINES, device_name
from gpugate.store.codec import from_json, to_json
from gpugate.store.json_file import pretty, with_header

NOT_TRUSTWORTHY = 1
MEASURING_S = 120.0  # mostly the import of torch, from a cold disk
FORMAT = "gpugate-doctor"
# History: 1: the environment and a list of findings.
FORMAT_VERSION = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 a gate run here would be trustworthy, 1 it would not, 2 wrong options"
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--baselines",
        metavar="DIR",
        type=Path,
        default=Path(DEFAULT_BASELINES),
        help="where baselines are (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the diagnosis. Raises OptionError for a device that does not exist."""
    device = device_name(arguments.device)
    with Console(stderr=True).status("looking at this machine"):
        diagnosis = diagnose(device, arguments.baselines)
    if arguments.json:
        sys.stdout.write(document(diagnosis))
    else:
        sys.stdout.write(text(diagnosis, terminal_columns(), stdout_takes_colour()))
    return NOT_TRUSTWORTHY if diagnosis.bad else 0


def diagnose(asked: str, baselines_path: Path) -> Diagnosis:
    """Examines the machine for a device `asked`, as `--device` takes it. Raises OptionError where the device does not
    exist."""
    began = time.perf_counter()
    ended = run_module(measuring.__name__, task=asked, timeout_s=MEASURING_S)
    known = ended.messages[-1:]
    facts = from_json(Facts, known[0]) if known else Facts(os.getloadavg()[0], os.cpu_count() or 1)
    if facts.refused is not None:
        raise OptionError(facts.refused)
    if facts.error is None:
        facts = replace(facts, error=f"it {ended.cause}"[:LONGEST_ERROR])
    return Diagnosis(facts.environment, tuple(list_findings(facts, asked, baselines_path)), time.perf_counter() - began)


def document(diagnosis: Diagnosis) -> str:
    """Returns one JSON document, without environment variables and without output of the child other than its error."""
    body = {"trustworthy": not diagnosis.bad, **to_json(diagnosis)}
    return pretty(with_header(FORMAT, FORMAT_VERSION, body)) + "\n"


def text(diagnosis: Diagnosis, width: int, colour: bool) -> str:
    """Returns a group of lines for each group of findings, and a last line that sums up, for any stream; with
    `colour`, with ANSI escapes."""
    rows = [(one.group, one.name, one.state, one.sentence) for one in diagnosis.findings]
    table = Table("", (Column("", left=True),) * 4, tuple(rows), grouped=True)
    if diagnosis.bad:
        end = Text(f"a gate run here would not be trustworthy: {', '.join(diagnosis.bad)}", style=STYLES["bad"])
    else:
        end = Text("a gate run here would be trustworthy", style=STYLES["ok"])
    return Rendered(render_text([*table.rich(width), Text(), end], width, colour).lstrip("\n"))

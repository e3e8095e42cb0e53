"""`gpugate doctor`: its options, and its exit status, which is 0 only where a gate run can be trusted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

NOT_TRUSTWORTHY = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from gpugate.session.options import DEFAULT_BASELINES

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
    from rich.console import Console

    from gpugate.commands.doctor.children import Children
    from gpugate.commands.doctor.examination import examine
    from gpugate.commands.doctor.render import document, text
    from gpugate.report.terminal import stdout_takes_colour, terminal_columns
    from gpugate.session.options import device_name

    device = device_name(arguments.device)
    with Console(stderr=True).status("looking at this machine"), Children() as children:
        diagnosis = examine(device, arguments.baselines, children)
    if arguments.json:
        sys.stdout.write(document(diagnosis))
    else:
        sys.stdout.write(text(diagnosis, terminal_columns(), stdout_takes_colour()))
    return NOT_TRUSTWORTHY if diagnosis.bad else 0

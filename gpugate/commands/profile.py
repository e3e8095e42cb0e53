"""`gpugate profile FILE`: a summary of the steps in a report of Nsight Systems."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpugate.errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 summarized, 2 a file or an option is unusable"
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="a .nsys-rep, or the .sqlite that nsys exported from it"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    form.add_argument("--markdown", action="store_true", help="print Markdown instead of tables")
    parser.add_argument(
        "--steps",
        metavar="N",
        type=int,
        help="number of steps that FILE must contain; for a FILE without step ranges, the steps of the whole report",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the summary. Raises ProfileError for a file that cannot be used and OptionError for no steps."""
    from gpugate.profiling.export import export_report
    from gpugate.profiling.summary import markdown, summarize, summary_text, tables
    from gpugate.report.terminal import render_text, stdout_takes_colour, terminal_columns

    if arguments.steps is not None and arguments.steps < 1:
        raise OptionError(f"--steps {arguments.steps} is not a whole number from 1 on: give the number of steps")
    summary = summarize(export_report(arguments.file), arguments.steps)
    if arguments.json:
        sys.stdout.write(summary_text(summary))
    elif arguments.markdown:
        sys.stdout.write(markdown(summary))
    else:
        width = terminal_columns()
        sys.stdout.write(render_text(tables(summary, width), width, stdout_takes_colour()))
    return 0

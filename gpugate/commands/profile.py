"""`gpugate profile FILE`: a summary of the steps in a report of Nsight Systems."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 summarized, 2 a file or an option is unusable"
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="a .nsys-rep, or the .sqlite that nsys exported from it"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown instead of tables")


def run(arguments: argparse.Namespace) -> int:
    """Prints the summary. Raises ProfileError for a file that cannot be used."""
    from gpugate.profiling.export import export_report
    from gpugate.profiling.summary import markdown, summarize, tables
    from gpugate.report.terminal import print_parts, terminal_columns

    summary = summarize(export_report(arguments.file))
    if arguments.markdown:
        sys.stdout.write(markdown(summary))
    else:
        print_parts(tables(summary, terminal_columns()))
    return 0

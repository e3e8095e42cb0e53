"""`gpugate profile FILE`: a summary of the steps in a report of Nsight Systems."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 summarized, 2 a file or an option is unusable"
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="a .nsys-rep, or the .sqlite that nsys exported from it"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the summary. Raises ProfileError for a file that cannot be used."""
    from gpugate.profiling.export import export_report, read_export
    from gpugate.profiling.summary import render
    from gpugate.report.terminal import print_parts, terminal_columns

    print_parts(render(read_export(export_report(arguments.file)), terminal_columns()))
    return 0

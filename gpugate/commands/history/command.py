"""`gpugate history [DIR ...]`: its options, the nights that they select, and its exit status."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpugate.store.store_url import VARIABLE

DEFAULT_LAST = 42  # six weeks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 printed, 2 no night can be used or an option is wrong; a night that cannot be is named"
    )
    add_selection(parser, DEFAULT_LAST)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument(
        "--export",
        metavar="FORMAT",
        choices=("csv",),
        help="print all selected nights as csv: a line for each night and case, such as Apache Otava reads",
    )


def add_selection(parser: argparse.ArgumentParser, last: int) -> None:
    """Adds the options that `select_nights` reads, and `--last` with its default."""
    parser.add_argument(
        "--last",
        metavar="N",
        default=str(last),
        help="show the newest N nights of each machine; marks rest on all (default: %(default)s)",
    )
    parser.add_argument(
        "folders",
        metavar="DIR",
        nargs="*",
        type=Path,
        help="read these instead of the store: each directory in DIR is a night of --perf-report",
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help=f"read the store at an SQLAlchemy URL (default: {VARIABLE}, else the nearest .gpugate from here upwards)",
    )
    parser.add_argument("-k", "--case", metavar="PART", default="", help="only cases with PART in their id")
    parser.add_argument("--machine", metavar="PART", default="", help="only machines with PART in their name")
    parser.add_argument("--branch", metavar="NAME", help="only nights of this branch")
    parser.add_argument(
        "--between",
        metavar=("FIRST", "LAST"),
        nargs=2,
        help="only nights from FIRST to LAST, inclusive: each a date such as 2026-11-23, or a commit of the store",
    )
    parser.add_argument(
        "--by",
        choices=("night", "commit"),
        default="night",
        help="one value for each night, or for each commit that of its middle night (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the trends, and names on stderr each night that cannot be used. Raises HistoryError where none can."""
    from gpugate.commands.history.csv_lines import write_csv
    from gpugate.commands.history.render import document, text
    from gpugate.commands.history.selected_nights import select_nights
    from gpugate.commands.history.trends import build_histories
    from gpugate.report.terminal import stdout_takes_colour, terminal_columns
    from gpugate.session.options import whole_number

    last = whole_number("--last", arguments.last, DEFAULT_LAST)
    nights, refused = select_nights(arguments, all_metrics=arguments.export is not None)
    for sentence in refused:
        print(f"gpugate history: {sentence}", file=sys.stderr)
    if arguments.export is not None:
        sys.stdout.write(write_csv(nights))
        return 0
    histories = build_histories(nights, last, arguments.by)
    if arguments.json:
        sys.stdout.write(document(histories, refused))
    else:
        sys.stdout.write(text(histories, terminal_columns(), stdout_takes_colour()))
    return 0

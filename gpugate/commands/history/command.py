"""`gpugate history DIR`: its options, and its exit status, which is 0 where there was something to print."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DEFAULT_LAST = 42  # six weeks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 printed, 2 no night can be used or an option is wrong; a night that cannot be is named"
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="its directories, each a night of --perf-report")
    parser.add_argument("-k", dest="part", metavar="PART", default="", help="only cases with this in their id")
    parser.add_argument(
        "--last",
        metavar="N",
        default=str(DEFAULT_LAST),
        help="show the newest N nights of each machine; marks rest on all (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")


def run(arguments: argparse.Namespace) -> int:
    """Prints the trends, and names on stderr each night that cannot be used. Raises HistoryError where none can."""
    from gpugate.commands.history.nights import HistoryError, read_nights
    from gpugate.commands.history.render import document, text
    from gpugate.commands.history.trends import build_histories
    from gpugate.report.terminal import stdout_takes_colour, terminal_columns
    from gpugate.session.options import whole_number

    last = whole_number("--last", arguments.last, DEFAULT_LAST)
    nights, refused = read_nights(arguments.folder)
    for sentence in refused:
        print(f"gpugate history: {sentence}", file=sys.stderr)
    if not nights:
        raise HistoryError(f"none of the {len(refused)} directories of {arguments.folder} is a night that can be used")
    if not any(arguments.part.lower() in case_id.lower() for night in nights for case_id in night.cases):
        what = f"has {arguments.part!r} in its id" if arguments.part else "was measured"
        raise HistoryError(f"no case of {arguments.folder} {what}: give another -k, or other nights")
    histories = build_histories(nights, arguments.part, last)
    if arguments.json:
        sys.stdout.write(document(histories, refused))
    else:
        sys.stdout.write(text(histories, terminal_columns(), stdout_takes_colour()))
    return 0

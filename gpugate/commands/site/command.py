"""`gpugate site DIR`: the trends of the store as a folder of files that a browser opens without a server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpugate.commands.history.command import add_selection

DEFAULT_LAST = 365  # a year


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 written, 2 no night can be used, an option is wrong, or SITE cannot be written"
    parser.add_argument("site", metavar="SITE", type=Path, help="the folder to write: open its index.html")
    add_selection(parser, DEFAULT_LAST)


def run(arguments: argparse.Namespace) -> int:
    """Writes the site, and names on stderr each night that cannot be used. Raises HistoryError where none can."""
    from gpugate.commands.history.selected_nights import select_nights
    from gpugate.commands.history.trends import build_histories
    from gpugate.commands.site.page import write_site
    from gpugate.session.options import whole_number

    last = whole_number("--last", arguments.last, DEFAULT_LAST)
    nights, refused = select_nights(arguments)
    for sentence in refused:
        print(f"gpugate site: {sentence}", file=sys.stderr)
    histories = build_histories(nights, last, arguments.by)
    print(f"{write_site(arguments.site, histories)}: open it in a browser")
    return 0

"""`gpugate history [DIR ...]`: the trend of each case over many nights, as a table, as JSON or as a page of charts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpugate.errors import OptionError
from gpugate.report.machine import describe_unfit
from gpugate.results.run import Night
from gpugate.session.options import find_url
from gpugate.store.database import IN_MEMORY, open_store
from gpugate.store.nights import add_folder
from gpugate.store.store_url import VARIABLE

DEFAULT_LAST, LAST_OF_PAGE = 42, 365  # six weeks, and a year


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 printed, 2 no night can be used, an option is wrong, or SITE cannot be written; a night that "
        "cannot be used is named"
    )
    add_selection(parser)
    parser.add_argument(
        "--last",
        metavar="N",
        help="show the newest N nights of each machine; all nights decide where a level changed "
        f"(default: {DEFAULT_LAST}, and {LAST_OF_PAGE} with --html)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    form.add_argument(
        "--html", metavar="SITE", type=Path, help="write a page of charts to this folder instead: open its index.html"
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `select_nights` reads."""
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
        help=f"read the store at an SQLAlchemy URL (default: {VARIABLE}, else the project's)",
    )
    part = "only cases with PART in their id: it is no expression, as pytest's -k is"
    parser.add_argument("-k", "--case", metavar="PART", default="", help=part)
    parser.add_argument("--machine", metavar="PART", default="", help="only machines with PART in their name")
    parser.add_argument("--branch", metavar="NAME", help="only nights of this branch")
    parser.add_argument("--gates", action="store_true", help="only runs of --gate")


def run(arguments: argparse.Namespace) -> int:
    """Prints or writes the trends. Raises as `select_nights` does, and OptionError where the page cannot be written."""
    from gpugate.commands.trend_report import describe_machine, write_document, write_site
    from gpugate.commands.trends import build_histories
    from gpugate.report.terminal import print_parts, terminal_columns
    from gpugate.session.options import whole_number
    from gpugate.store.json_file import writing

    usual = DEFAULT_LAST if arguments.html is None else LAST_OF_PAGE
    last = usual if arguments.last is None else whole_number("--last", arguments.last, usual)
    nights, refused = select_nights(arguments)
    histories = build_histories(nights, last)
    if arguments.html is not None:
        with writing(arguments.html, OptionError, "give a folder that can be"):
            page = write_site(arguments.html, histories)
        print(f"{page}: open it in a browser")
    elif arguments.json:
        sys.stdout.write(write_document(histories, refused))
    else:
        print_parts(part for history in histories for part in describe_machine(history, terminal_columns()))
    return 0


def select_nights(arguments: argparse.Namespace) -> tuple[list[Night], list[str]]:
    """The selected nights, the oldest first, and a sentence about each one that cannot be used, which is also printed.

    Raises OptionError where none can be, and StoreError where the store cannot be read.
    """
    if arguments.folders and arguments.store:
        raise OptionError("--store and folders were given, and a history is of one of them: leave one out")
    refused: list[str] = []
    url = IN_MEMORY if arguments.folders else find_url(arguments.store)
    with open_store(url, make=bool(arguments.folders)) as store:
        for folder in arguments.folders:
            refused += add_folder(store, folder).refused
        where = ", ".join(map(str, arguments.folders)) or store.name
        nights = store.read_nights(arguments.case, arguments.machine, arguments.branch)
    nights = [night for night in nights if night.is_gate or not arguments.gates]
    if not any(night.cases for night in nights):
        unfit = describe_unfit([name for night in nights for name in night.unfit], "measurement")
        why = f" ({unfit or refused[0]})" if unfit or refused else ""
        step = "measure first, give other nights, or leave out --case, --machine, --branch or --gates"
        raise OptionError(f"no measured case of {where} is selected{why}: {step}")
    for sentence in refused:
        print(f"{arguments.program}: {sentence}", file=sys.stderr)
    return nights, refused

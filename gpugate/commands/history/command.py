"""`gpugate history [DIR ...]`: its options, the nights that they select, and its exit status."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.results.night import BILL_TIMES, TIMED, UNKNOWN, Night, merge_commits
from gpugate.store.database import IN_MEMORY, Selection, Store, open_store
from gpugate.store.nights import add_folder
from gpugate.store.store_url import VARIABLE, find_url
from gpugate.units import number_of

DEFAULT_LAST = 42  # six weeks
_SHOWN = (*TIMED, *BILL_TIMES, "anchor_speedup")
_COMMIT = re.compile(r"[0-9a-f]{4,64}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 printed, 2 no night can be used or an option is wrong; a night that cannot be is named"
    )
    add_selection(parser, DEFAULT_LAST)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")


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
    from gpugate.commands.history.render import document, text
    from gpugate.commands.history.trends import build_histories
    from gpugate.report.terminal import stdout_takes_colour, terminal_columns
    from gpugate.session.options import whole_number

    last = whole_number("--last", arguments.last, DEFAULT_LAST)
    nights, refused = select_nights(arguments)
    for sentence in refused:
        print(f"gpugate history: {sentence}", file=sys.stderr)
    histories = build_histories(nights, last, arguments.by)
    if arguments.json:
        sys.stdout.write(document(histories, refused))
    else:
        sys.stdout.write(text(histories, terminal_columns(), stdout_takes_colour()))
    return 0


class HistoryError(GpugateError):
    """No night or no case can be shown."""


def select_nights(arguments: argparse.Namespace, all_metrics: bool = False) -> tuple[list[Night], list[str]]:
    """The selected nights, the oldest first, and a sentence about each one that cannot be used.

    They have the metrics of a trend, or `all_metrics`. Raises HistoryError where none can be, and NightError and
    StoreError where folders or the store cannot be read.
    """
    if arguments.folders and arguments.store:
        raise HistoryError("--store and folders were given, and a history is of one of them: leave one out")
    refused: list[str] = []
    with closing(_open(arguments.store, bool(arguments.folders))) as store:
        for folder in arguments.folders:
            added = add_folder(store, folder)
            refused += [*added.refused, *added.known]
        where = ", ".join(map(str, arguments.folders)) or store.name
        if store.count_runs() == 0:
            if refused:
                raise HistoryError(f"none of the {len(refused)} directories of {where} is a night that can be used")
            raise HistoryError(f"{where} has no run: measure first, or give folders of nights")
        nights = store.read_nights(_selection(store, arguments, all_metrics))
    if not nights:
        raise HistoryError(f"no night of {where} is selected: give another --machine, --branch or --between")
    if not any(night.cases for night in nights):
        what = f"has {arguments.case!r} in its id" if arguments.case else "was measured"
        other = "give another -k, or other nights"
        if any(night.unfit for night in nights):
            other = "the machine was not well (ENV_INVALID), so measure again, or give other nights"
        raise HistoryError(f"no case of {where} {what}: {other}")
    if arguments.by == "commit":
        nights, refused = _merge(nights, refused, where)
    return nights, refused


def _open(url: str | None, in_memory: bool) -> Store:
    if in_memory:
        return open_store(IN_MEMORY)
    chosen = find_url(url)
    if chosen is None:
        raise HistoryError(f"{VARIABLE} is off: give --store URL, or folders of nights")
    return open_store(chosen, make=False)


def _selection(store: Store, arguments: argparse.Namespace, all_metrics: bool) -> Selection:
    selection = Selection(
        case=arguments.case,
        machine=arguments.machine,
        branch=arguments.branch,
        metrics=() if all_metrics else _SHOWN,
    )
    if arguments.between is None:
        return selection
    first, last = (_parse_end(store, word) for word in arguments.between)
    return replace(selection, since=first[0], until=last[1])


def _parse_end(store: Store, word: str) -> tuple[datetime.datetime, datetime.datetime]:
    """The first and the last moment of a day, of a time or of a commit's nights. Raises HistoryError for neither."""
    if _COMMIT.fullmatch(word):
        found = store.find_commit(word)
        if found is None:
            step = "give one that was measured, or a date such as 2026-11-23"
            raise HistoryError(f"--between {word} is no commit of the store: {step}")
        return found
    try:
        moment = datetime.datetime.fromisoformat(word).astimezone()
        day = datetime.timedelta(days=1, seconds=-1) if _DATE.fullmatch(word) else datetime.timedelta()
        return moment, moment + day
    except (ValueError, OverflowError):
        raise HistoryError(
            f"--between {word} is neither a date nor a commit: give one such as 2026-11-23 or 1a2b3c4d5e6f"
        ) from None


def _merge(nights: list[Night], refused: list[str], where: str) -> tuple[list[Night], list[str]]:
    merged = merge_commits(nights)
    if not merged:
        raise HistoryError(f"no night of {where} has a known commit: give --by night")
    unknown = sum(night.version == UNKNOWN for night in nights)
    left_out = [f"{number_of(unknown, 'night')} without a known commit left out"] if unknown else []
    return merged, [*refused, *left_out]

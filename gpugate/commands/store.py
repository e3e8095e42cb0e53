"""`gpugate store add DIR ...`: adds the runs of files to the store; a lost store is made again in this way."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpugate.session.options import find_url
from gpugate.store.store_url import VARIABLE
from gpugate.units import number_of

REFUSED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "adds runs of --perf-report and --perf-json, even those of an older gpugate; a run that the store has stays"
    parser.add_argument("action", choices=["add"], help=text)
    parser.add_argument(
        "folders",
        metavar="DIR",
        nargs="+",
        type=Path,
        help="a night, or a folder whose directories are nights and whose .json files are runs",
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help=f"add to this SQLAlchemy URL (default: {VARIABLE}, else the project's)",
    )
    parser.epilog = "exit status: 0 every run is stored, 1 a run cannot be used, 2 a folder or the store cannot be used"


def run(arguments: argparse.Namespace) -> int:
    """Adds the folders and prints how many runs were new. Raises OptionError and StoreError for what cannot be used."""
    from gpugate.store.database import open_store
    from gpugate.store.nights import add_folder

    refused = False
    with open_store(find_url(arguments.store)) as store:
        for folder in arguments.folders:
            added = add_folder(store, folder)
            for sentence in added.refused:
                print(f"gpugate store: {sentence}", file=sys.stderr)
            refused |= bool(added.refused)
            there = f", {number_of(added.known, 'run')} there already" if added.known else ""
            print(f"{folder}: {number_of(added.new, 'run')} added{there}")
        print(f"{store.name}: {number_of(store.count_runs(), 'run')}")
    return REFUSED if refused else 0

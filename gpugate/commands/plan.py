"""`gpugate plan`: which GPU of a host measures which cases of a night, and how long the night takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from rich.text import Text

from gpugate.commands.history import add_selection, select_nights
from gpugate.report.machine import describe_unfit
from gpugate.report.table import Column, Table
from gpugate.report.terminal import print_parts, terminal_columns
from gpugate.results.fleet_plan import divide
from gpugate.results.run import CaseNight
from gpugate.session.options import whole_number
from gpugate.units import duration, number_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "--gpus",
        metavar="N",
        required=True,
        help="plan one host with N GPUs: cases that need the host or span GPUs run alone, after the others",
    )
    parser.epilog = (
        "A case has the duration of its newest run on the machine that measured last. The plan of a host is for as "
        "many cores for each GPU as that machine had. The points of a sweep are planned one by one, and measured by "
        "one GPU. Exit status: 0 planned, 2 no night can be used or an option is wrong."
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan. Raises OptionError for a number that cannot be used, and as `select_nights` does."""
    gpus = whole_number("--gpus", arguments.gpus, example=4)
    found, _ = select_nights(arguments)
    machine = [night.machine for night in found if night.cases][-1]
    nights = [night for night in found if night.machine == machine]
    cases = {name: case for night in nights for name, case in night.cases.items()}  # of the newest night that has it
    known_s = [taken_s for case in cases.values() if (taken_s := case.value("duration_s"))]
    usual_s = median(known_s) if known_s else 1.0
    side_by_side = {name: case.value("duration_s") or usual_s for name, case in cases.items()}
    alone = {name: side_by_side.pop(name) for name, case in cases.items() if _runs_alone(case)}
    shares = [{name: side_by_side[name] for name in share} for share in divide(side_by_side, gpus)]
    left_out = dict.fromkeys(name for night in nights for name in night.unfit if name not in cases)
    notes = [
        f"{number_of(len(cases), 'case')} of {machine}, without the start of their processes",
        describe_unfit(list(left_out), "case"),
        *_describe(shares, alone, unknown=len(cases) - len(known_s)),
    ]
    texts = (Text(words, overflow="fold") for words in notes if words)
    print_parts([*_table(shares, alone).rich(terminal_columns()), Text(), *texts])
    return 0


def _runs_alone(case: CaseNight) -> bool:
    return case.value("needs_host") == 1 or (case.value("ranks") or 1) > 1


def _table(shares: Sequence[Mapping[str, float]], alone: Mapping[str, float]) -> Table:
    """A row for the share of each GPU, which is measured beside the others, and one for the cases that run alone later.

    A share is its cases with their seconds.
    """
    rows = [(str(number), share) for number, share in enumerate(shares, 1)]
    rows += [("alone", alone)] if alone else []
    columns = Column("GPU", left=True), Column("time"), Column("cases", left=True)
    cells = ((name, duration(sum(share.values())), "\n".join(share)) for name, share in rows)
    return Table("", columns, tuple(cells))


def _describe(shares: Sequence[Mapping[str, float]], alone: Mapping[str, float], unknown: int) -> Iterator[str]:
    makespan_s, alone_s = max(sum(share.values()) for share in shares), sum(alone.values())
    if unknown:
        yield f"{number_of(unknown, 'case')} without a known duration: each counts as the others' median, else as 1 s"
    if makespan_s:
        yield f"side by side {duration(makespan_s)}"
    if alone:
        yield (
            f"cases that need the host or span GPUs run alone on it, {duration(alone_s)}: the "
            f"night takes {duration(makespan_s + alone_s)}"
        )

"""`gpugate plan`: which GPU of a host measures which cases of a night, and how long the night takes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from gpugate.commands.history import add_selection, select_nights
from gpugate.machine.environment import machine_name
from gpugate.report.machine import describe_unfit
from gpugate.report.table import Column, Table
from gpugate.report.terminal import print_parts, terminal_columns
from gpugate.results.fleet_plan import FleetPlan, PlannedCase, group_cases, plan_host, total_s
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
        "one GPU."
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan. Raises as `make_plan` does."""
    print_parts(_parts(make_plan(arguments), terminal_columns()))
    return 0


def make_plan(arguments: argparse.Namespace) -> Planned:
    """Raises OptionError for a number that cannot be used, and as `select_nights` does."""
    gpus = whole_number("--gpus", arguments.gpus, example=4)
    found, refused = select_nights(arguments)
    for sentence in refused:
        print(f"gpugate plan: {sentence}", file=sys.stderr)
    measured = [night for night in found if night.cases]
    machine = machine_name(max(measured, key=lambda night: night.started).environment)
    nights = sorted((one for one in found if machine_name(one.environment) == machine), key=lambda night: night.started)
    cases = {name: _plan_case(case) for night in nights for name, case in night.cases.items()}
    seconds = ((name, case.value("duration_s")) for night in nights for name, case in night.cases.items())
    known_s = {name: taken_s for name, taken_s in seconds if taken_s}
    groups = group_cases(cases.values(), known_s)
    left_out = tuple(dict.fromkeys(name for night in nights for name in night.unfit if name not in cases))
    return Planned(machine, len(cases), len(known_s), plan_host(groups, gpus), left_out)


def _plan_case(case: CaseNight) -> PlannedCase:
    return PlannedCase(case.case_id, case.case_id, case.value("needs_host") == 1, int(case.value("ranks") or 1))


@dataclass(frozen=True)
class Planned:
    """A plan, and the number of its cases and of those whose duration is known.

    `left_out` are the cases that the store knows only from a machine that was not well.
    """

    machine: str
    cases: int
    known: int
    plan: FleetPlan
    left_out: tuple[str, ...] = ()


def _parts(planned: Planned, width: int) -> Iterator[RenderableType]:
    plan = planned.plan
    rows = [(str(number), share) for number, share in enumerate(plan.gpus, 1)]
    rows += [("alone", plan.alone)] if plan.alone else []
    columns = Column("GPU", left=True), Column("time"), Column("cases", left=True)
    cells = tuple((name, duration(total_s(share)), "\n".join(group.name for group in share)) for name, share in rows)
    yield from Table("", columns, cells).rich(width)
    yield Text()
    yield from (Text(words, overflow="fold") for words in _describe(planned))


def _describe(planned: Planned) -> Iterator[str]:
    plan, unknown = planned.plan, planned.cases - planned.known
    yield f"{number_of(planned.cases, 'case')} of {planned.machine}, without the start of their processes"
    if unfit := describe_unfit(planned.left_out, "case"):
        yield unfit
    if unknown:
        yield f"{number_of(unknown, 'case')} without a known duration: each counts as the others' median, else as 1 s"
    if plan.makespan_s:
        yield f"side by side {duration(plan.makespan_s)}"
    if plan.alone:
        yield (
            f"cases that need the host or span GPUs run alone on it, {duration(total_s(plan.alone))}: the "
            f"night takes {duration(plan.night_s)}"
        )

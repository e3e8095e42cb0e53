"""`gpugate plan`: which GPU or shard measures which cases of a night, and how long the night takes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from gpugate.errors import GpugateError
from gpugate.machine.environment import machine_name
from gpugate.report.machine import describe_unfit
from gpugate.report.table import Column, Table
from gpugate.report.terminal import render_text, stdout_takes_colour, terminal_columns
from gpugate.results.fleet_plan import (
    FLEETS,
    FleetPlan,
    PlannedCase,
    group_cases,
    plan_host,
    plan_shards,
    total_s,
)
from gpugate.results.run import CaseNight, Night
from gpugate.session.options import find_url, whole_number
from gpugate.store import run_file
from gpugate.store.night_files import find_runs
from gpugate.store.nights import night_of
from gpugate.store.store_url import VARIABLE
from gpugate.units import duration, number_of


class PlanError(GpugateError):
    """There is no case to plan."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="PATH",
        type=Path,
        nargs="*",
        help="a night, a run file, or a folder of them, whose durations count (default: the store)",
    )
    fleet = parser.add_mutually_exclusive_group(required=True)
    fleet.add_argument(
        "--gpus",
        metavar="N",
        help="plan one host with N GPUs: cases that need the host or span GPUs run alone, after the others",
    )
    fleet.add_argument("--shards", metavar="N", help="plan the N shards of --perf-shard, each on a host of its own")
    parser.add_argument(
        "--store",
        metavar="URL",
        help=f"read this store, an SQLAlchemy URL (default: {VARIABLE}, else the project's)",
    )
    parser.epilog = (
        "A case has the duration of its newest run on the machine that measured last. The plan of a host is for as "
        "many cores for each GPU as that machine had. The points of a sweep are planned one by one, and measured by "
        "one GPU."
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan. Raises as `make_plan` does."""
    width, one = terminal_columns(), "GPU" if arguments.shards is None else "shard"
    sys.stdout.write(render_text(_parts(make_plan(arguments), one, width), width, stdout_takes_colour()))
    return 0


def make_plan(arguments: argparse.Namespace) -> Planned:
    """Raises OptionError for a number that cannot be used, and PlanError where no case is stored."""
    option, text = ("--gpus", arguments.gpus) if arguments.shards is None else ("--shards", arguments.shards)
    count, plan = whole_number(option, text, example=4), plan_host if arguments.shards is None else plan_shards
    found = _read_files(arguments.paths) if arguments.paths else _read_store(arguments.store)
    measured = [night for night in found if night.cases]
    if not measured:
        where = ", ".join(map(str, arguments.paths)) or "the store"
        sick = any(night.unfit for night in found)
        step = "the machine was not well (ENV_INVALID), so measure again" if sick else "measure first"
        raise PlanError(f"{where} has no measured case that counts: {step}, or give other runs")
    machine = machine_name(max(measured, key=lambda night: night.started).environment)
    nights = sorted((one for one in found if machine_name(one.environment) == machine), key=lambda night: night.started)
    cases = {name: _plan_case(case) for night in nights for name, case in night.cases.items()}
    seconds = ((name, case.value("duration_s")) for night in nights for name, case in night.cases.items())
    known_s = {name: taken_s for name, taken_s in seconds if taken_s}
    groups = group_cases(cases.values(), known_s)
    nights_s = {gpus: plan(groups, gpus).night_s for gpus in FLEETS}
    left_out = tuple(dict.fromkeys(name for night in nights for name in night.unfit if name not in cases))
    return Planned(machine, len(cases), len(known_s), plan(groups, count), nights_s, left_out)


def _plan_case(case: CaseNight) -> PlannedCase:
    return PlannedCase(case.case_id, case.case_id, case.value("needs_host") == 1, int(case.value("ranks") or 1))


def _read_files(paths: Sequence[Path]) -> list[Night]:
    """Reads runs, nights, and folders of them. Raises RunFileError for a file that cannot be used."""
    return [night_of(run_file.read(path)) for each in paths for path in find_runs(each)]


def _read_store(given: str | None) -> list[Night]:
    """Reads all nights of a store. Raises PlanError without a store, StoreError for one that cannot be read."""
    url = find_url(given)
    if url is None:
        raise PlanError("the store is off: give --store URL, or runs")
    from gpugate.store.database import Selection, open_store  # which imports sqlalchemy: run files need none

    with closing(open_store(url, make=False)) as store:
        # Each case has a speedup, also one whose duration an older gpugate did not store.
        return store.read_nights(Selection(metrics=("speedup", "duration_s", "needs_host", "ranks")))


@dataclass(frozen=True)
class Planned:
    """A plan, the number of its cases and of those whose duration is known, and the night on other fleets.

    `left_out` are the cases that the store knows only from a machine that was not well.
    """

    machine: str
    cases: int
    known: int
    plan: FleetPlan
    nights_s: Mapping[int, float]  # by the number of GPUs or shards
    left_out: tuple[str, ...] = ()


def _parts(planned: Planned, one: str, width: int) -> Iterator[RenderableType]:
    plan = planned.plan
    rows = [(str(number), share) for number, share in enumerate(plan.gpus, 1)]
    rows += [("alone", plan.alone)] if plan.alone else []
    columns = Column(one, left=True), Column("time"), Column("cases", left=True)
    cells = tuple((name, duration(total_s(share)), "\n".join(group.name for group in share)) for name, share in rows)
    yield from Table("", columns, cells).rich(width)
    yield Text()
    yield from (Text(words, overflow="fold") for words in _describe(planned, one))
    yield Text()
    headings = (Column(f"{one}s", left=True), *(Column(str(gpus)) for gpus in planned.nights_s))
    yield from Table("", headings, (("night", *map(duration, planned.nights_s.values())),)).rich(width)


def _describe(planned: Planned, one: str) -> Iterator[str]:
    plan, unknown = planned.plan, planned.cases - planned.known
    yield f"{number_of(planned.cases, 'case')} of {planned.machine}, without the start of their processes"
    if unfit := describe_unfit(planned.left_out, "case"):
        yield unfit
    if planned.known == 0:
        yield "no duration is known: each case counts as 1 s, so that times are numbers of cases"
    elif unknown:
        yield f"{number_of(unknown, 'case')} without a known duration: each counts as the median of the others"
    if plan.makespan_s:
        over = f"{plan.makespan_s / plan.bound_s:.2f} times the bound of {duration(plan.bound_s)}"
        larger = f"the larger one of the longest case and the sum over {one}s"
        yield f"side by side {duration(plan.makespan_s)}, {over}, {larger}"
    if plan.alone:
        yield (
            f"cases that need the host or span GPUs run alone on it, {duration(total_s(plan.alone))}: the "
            f"night takes {duration(plan.night_s)}"
        )

"""`gpugate plan`: which GPU or shard measures which cases of a night, and how long the night takes."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from gpugate.errors import GpugateError
from gpugate.machine.environment import machine_name
from gpugate.report.table import Column, Table
from gpugate.report.terminal import render_text, stdout_takes_colour, terminal_columns
from gpugate.results.night import Night
from gpugate.results.run import RunResult
from gpugate.session.fleet_plan import (
    FleetPlan,
    Group,
    PlannedCase,
    group_cases,
    group_name,
    plan_host,
    plan_shards,
    total_s,
)
from gpugate.session.options import whole_number
from gpugate.store import run_file
from gpugate.store.json_file import pretty, with_header
from gpugate.store.night_files import RUN, find_runs
from gpugate.store.store_url import VARIABLE, find_url
from gpugate.units import duration, number_of

FORMAT = "gpugate-plan"
# History: 1: the groups of each GPU and of the host, the makespan and its bound, and nights on other numbers of GPUs.
FORMAT_VERSION = 1
FLEETS = (1, 2, 4, 8)  # numbers of GPUs whose nights are compared


class PlanError(GpugateError):
    """There is no case to plan."""


@dataclass(frozen=True)
class StoredCases:
    """The cases that one stored run measured, each with its seconds where they are known."""

    started: datetime.datetime
    machine: str
    cases: tuple[tuple[PlannedCase, float | None], ...]


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
        "--gpus", metavar="N", help="plan one host with N GPUs: host-fed cases run alone, after the others"
    )
    fleet.add_argument("--shards", metavar="N", help="plan the N shards of --perf-shard, each on a host of its own")
    parser.add_argument(
        "--store",
        metavar="URL",
        help=f"read this store, an SQLAlchemy URL (default: {VARIABLE}, else the nearest .gpugate from here upwards)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.epilog = (
        "A case has the duration of its newest run on the machine that measured last. The store does not know which "
        "cases are the points of one sweep: shards are planned as they will be only from run files."
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan. Raises OptionError for a number that cannot be used, and PlanError where no case is stored."""
    option, text = ("--gpus", arguments.gpus) if arguments.shards is None else ("--shards", arguments.shards)
    count, plan = whole_number(option, text, example=4), plan_host if arguments.shards is None else plan_shards
    found = _read_files(arguments.paths) if arguments.paths else _read_store(arguments.store)
    stored = [one for one in found if one.cases]
    if not stored:
        where = ", ".join(map(str, arguments.paths)) or "the store"
        raise PlanError(f"{where} has no measured case: measure first, or give other runs")
    machine = max(stored, key=lambda one: one.started).machine
    cases, known_s = take_newest([one for one in stored if one.machine == machine])
    groups = group_cases(cases, known_s)
    fleets = {gpus: plan(groups, gpus).night_s for gpus in FLEETS}
    planned = Planned(machine, len(cases), len(known_s), plan(groups, count), fleets)
    if arguments.json:
        sys.stdout.write(pretty(with_header(FORMAT, FORMAT_VERSION, document(planned))) + "\n")
    else:
        width = terminal_columns()
        one = "GPU" if arguments.shards is None else "shard"
        sys.stdout.write(render_text(_parts(planned, one, width), width, stdout_takes_colour()))
    return 0


@dataclass(frozen=True)
class Planned:
    """A plan, the number of its cases and of those whose duration is known, and the night on other fleets."""

    machine: str
    cases: int
    known: int
    plan: FleetPlan
    night_s: dict[int, float]


def take_newest(stored: Sequence[StoredCases]) -> tuple[list[PlannedCase], dict[str, float]]:
    """The cases of all runs, and the seconds of each in its newest run that knows them."""
    cases: dict[str, PlannedCase] = {}
    known_s: dict[str, float] = {}
    for one in sorted(stored, key=lambda one: one.started):
        for case, seconds in one.cases:
            cases[case.case_id] = case
            if seconds is not None:
                known_s[case.case_id] = seconds
    return list(cases.values()), known_s


def _read_files(paths: Sequence[Path]) -> list[StoredCases]:
    found = [path / RUN if (path / RUN).is_file() else path for path in paths]
    return [_of_run(run_file.read(path)) for each in found for path in find_runs(each)]


def _of_run(stored: RunResult) -> StoredCases:
    measured = (case for case in stored.cases.values() if case.measurement is not None)
    cases = tuple(
        (PlannedCase(case.case_id, group_name(case.case_id, case.point), case.host_fed), case.duration_s or None)
        for case in measured
    )
    started = datetime.datetime.fromisoformat(stored.started_at)
    return StoredCases(started, machine_name(stored.environment), cases)


def _read_store(given: str | None) -> list[StoredCases]:
    from gpugate.store.database import Selection, open_store  # which imports sqlalchemy: run files need none

    url = find_url(given)
    if url is None:
        raise PlanError(f"{VARIABLE} is off: give --store URL, or runs")
    with closing(open_store(url, make=False)) as store:
        # Each case has a speedup, also one whose duration an older gpugate did not store.
        nights = store.read_nights(Selection(metrics=("speedup", "duration_s", "host_fed")))
    return [_of_night(night) for night in nights]


def _of_night(night: Night) -> StoredCases:
    cases = tuple(
        (PlannedCase(name, name, case.value("host_fed") == 1), case.value("duration_s"))
        for name, case in night.cases.items()
    )
    return StoredCases(night.started, machine_name(night.environment), cases)


def document(planned: Planned) -> dict[str, Any]:
    """The body of the JSON document."""
    plan = planned.plan
    return {
        "machine": planned.machine,
        "cases": planned.cases,
        "cases_with_duration": planned.known,
        "makespan_s": plan.makespan_s,
        "bound_s": plan.bound_s,
        "night_s": plan.night_s,
        "gpus": [_share_as_json(share) for share in plan.gpus],
        "alone": _share_as_json(plan.alone),
        "fleets": [{"gpus": gpus, "night_s": seconds} for gpus, seconds in planned.night_s.items()],
    }


def _share_as_json(share: Sequence[Group]) -> dict[str, Any]:
    return {"duration_s": total_s(share), "cases": [case_id for group in share for case_id in group.cases]}


def _parts(planned: Planned, one: str, width: int) -> Iterator[RenderableType]:
    plan = planned.plan
    rows = [(str(number), share) for number, share in enumerate(plan.gpus, 1)]
    rows += [("alone", plan.alone)] if plan.alone else []
    columns = Column(one, left=True), Column("time"), Column("cases", left=True)
    cells = tuple((name, duration(total_s(share)), "\n".join(group.name for group in share)) for name, share in rows)
    yield from Table("", columns, cells).rich(width)
    yield Text()
    yield from (Text(words, overflow="fold") for words in _describe(planned, one))
    fleets = planned.night_s.items()
    yield Text()
    headings = (Column(f"{one}s", left=True), *(Column(str(number)) for number, _ in fleets))
    yield from Table("", headings, (("night", *(duration(seconds) for _, seconds in fleets)),)).rich(width)


def _describe(planned: Planned, one: str) -> Iterator[str]:
    plan, unknown = planned.plan, planned.cases - planned.known
    yield f"{number_of(planned.cases, 'case')} of {planned.machine}, without the start of their processes"
    if planned.known == 0:
        yield "no duration is known: each case counts as 1 s, so that times are numbers of cases"
    elif unknown:
        yield f"{number_of(unknown, 'case')} without a known duration: each counts as the median of the others"
    over = f", {plan.makespan_s / plan.bound_s:.2f} times the bound of {duration(plan.bound_s)}" if plan.bound_s else ""
    yield f"side by side {duration(plan.makespan_s)}{over}, the larger one of the longest case and the sum over {one}s"
    if plan.alone:
        yield (
            f"host-fed cases run alone on the host, {duration(total_s(plan.alone))}: the night takes "
            f"{duration(plan.night_s)}"
        )

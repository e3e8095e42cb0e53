"""`gpugate plan`: which GPU or shard measures which cases of a night, and how long the night takes."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
from gpugate.results.night import Night
from gpugate.results.run import RunResult
from gpugate.session.options import whole_number
from gpugate.store import run_file
from gpugate.store.night_files import RUN, find_runs
from gpugate.store.store_url import VARIABLE, find_url
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
        help=f"read this store, an SQLAlchemy URL (default: {VARIABLE}, else the nearest .gpugate from here upwards)",
    )
    parser.epilog = (
        "A case has the duration of its newest run on the machine that measured last, with the time of the proofs that "
        "it showed last. The plan of a host is for as many cores for each GPU as that machine had. The store does not "
        "know which cases are the points of one sweep: shards are planned as they will be only from run files."
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
    found = read_files(arguments.paths) if arguments.paths else read_store(arguments.store)
    stored = [one for one in found if one.cases]
    if not stored:
        where = ", ".join(map(str, arguments.paths)) or "the store"
        sick = any(one.unfit for one in found)
        step = "the machine was not well (ENV_INVALID), so measure again" if sick else "measure first"
        raise PlanError(f"{where} has no measured case that counts: {step}, or give other runs")
    machine = max(stored, key=lambda one: one.started).machine
    newest = take_newest([one for one in stored if one.machine == machine])
    cases, known_s = [one.case for one in newest], list_durations(newest)
    groups = group_cases(cases, known_s)
    without_proofs = group_cases(cases, list_durations(newest, with_proofs=False))
    fleets = [Fleet(gpus, plan(groups, gpus).night_s, plan(without_proofs, gpus).night_s) for gpus in FLEETS]
    unfit = {case_id for one in found if one.machine == machine for case_id in one.unfit}
    left_out = tuple(unfit - {case.case_id for case in cases})
    return Planned(machine, len(cases), len(known_s), plan(groups, count), fleets, left_out)


class StoredCase(NamedTuple):
    """A case of one stored run, with the seconds that it took where they are known; proofs took `proving_s` of them."""

    case: PlannedCase
    duration_s: float | None
    proving_s: float = 0.0


@dataclass(frozen=True)
class StoredRun:
    """The cases of one stored run that were measured.

    `unfit` are the ids of cases of which the store has no seconds, since the machine was not well.
    """

    started: datetime.datetime
    machine: str
    cases: tuple[StoredCase, ...]
    unfit: tuple[str, ...] = ()


def take_newest(stored: Sequence[StoredRun]) -> list[StoredCase]:
    """The cases of all runs, each with the seconds of its newest run that knows them.

    A run that remembered its proofs took none: its seconds are those of a run that shows them, as the last one did.
    """
    newest: dict[str, StoredCase] = {}
    for one in sorted(stored, key=lambda one: one.started):
        for found in one.cases:
            before = newest.get(found.case.case_id, found)
            if found.duration_s is None:
                found = before._replace(case=found.case)
            elif not found.proving_s:
                found = found._replace(duration_s=found.duration_s + before.proving_s, proving_s=before.proving_s)
            newest[found.case.case_id] = found
    return list(newest.values())


def list_durations(cases: Iterable[StoredCase], *, with_proofs: bool = True) -> dict[str, float]:
    """The known seconds of the cases; without the time of their proofs, those of a night that remembers all proofs."""
    known = ((one, one.duration_s) for one in cases)
    return {
        one.case.case_id: taken - (0 if with_proofs else one.proving_s) for one, taken in known if taken is not None
    }


def read_files(paths: Sequence[Path]) -> list[StoredRun]:
    """Reads runs, nights, and folders of them. Raises RunFileError for a file that cannot be used."""
    found = [path / RUN if (path / RUN).is_file() else path for path in paths]
    return [_of_run(run_file.read(path)) for each in found for path in find_runs(each)]


def _of_run(stored: RunResult) -> StoredRun:
    measured = (case for case in stored.cases.values() if case.measurement is not None)
    cases = tuple(StoredCase(case.planned, case.duration_s or None, case.proving_s) for case in measured)
    started = datetime.datetime.fromisoformat(stored.started_at)
    return StoredRun(started, machine_name(stored.environment), cases)


def read_store(given: str | None) -> list[StoredRun]:
    """Reads all nights of a store. Raises PlanError without a store, StoreError for one that cannot be read."""
    url = find_url(given)
    if url is None:
        raise PlanError(f"{VARIABLE} is off: give --store URL, or runs")
    from gpugate.store.database import Selection, open_store  # which imports sqlalchemy: run files need none

    with closing(open_store(url, make=False)) as store:
        # Each case has a speedup, also one whose duration an older gpugate did not store.
        nights = store.read_nights(Selection(metrics=("speedup", "duration_s", "proving_s", "needs_host", "ranks")))
    return [_of_night(night) for night in nights]


def _of_night(night: Night) -> StoredRun:
    cases = tuple(
        StoredCase(
            PlannedCase(name, name, case.value("needs_host") == 1, int(case.value("ranks") or 1)),
            case.value("duration_s"),
            case.value("proving_s") or 0.0,
        )
        for name, case in night.cases.items()
    )
    return StoredRun(night.started, machine_name(night.environment), cases, night.unfit)


@dataclass(frozen=True)
class Fleet:
    """The duration of a night on so many GPUs or shards, with the proofs that each case showed last, and without."""

    gpus: int
    night_s: float
    night_with_remembered_proofs_s: float


@dataclass(frozen=True)
class Planned:
    """A plan, the number of its cases and of those whose duration is known, and the night on other fleets.

    `left_out` are the cases that the store knows only from a machine that was not well.
    """

    machine: str
    cases: int
    known: int
    plan: FleetPlan
    fleets: Sequence[Fleet]
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
    fleets = planned.fleets
    yield Text()
    headings = (Column(f"{one}s", left=True), *(Column(str(fleet.gpus)) for fleet in fleets))
    nights = [("night", *(duration(fleet.night_s) for fleet in fleets))]
    if any(fleet.night_with_remembered_proofs_s != fleet.night_s for fleet in fleets):
        shorter = (duration(fleet.night_with_remembered_proofs_s) for fleet in fleets)
        nights.append(("night with remembered proofs", *shorter))
    yield from Table("", headings, tuple(nights)).rich(width)


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

"""`gpugate compare BASE [HEAD]`: the cases whose time per step differs between two versions of the code.

The result is written for a terminal, as Markdown and as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from gpugate.errors import CompareError
from gpugate.judging.duet import judge_duets
from gpugate.machine.processes import treat_termination_as_ctrl_c
from gpugate.report.machine import describe_load
from gpugate.report.table import Column, Table
from gpugate.report.terminal import LOG_COLUMNS, code_block, indent, print_parts, terminal_columns
from gpugate.results.duet import BUDGET_S, Duet, DuetOutcome, DuetProcess
from gpugate.results.reason import BILL_WORDS
from gpugate.results.run import BILL_TIMES
from gpugate.session.duets import DuetPlan, measure_duets, pytest_words
from gpugate.session.options import seconds, whole_number, writable
from gpugate.statistics.intervals import Estimate
from gpugate.statistics.sequential import MOST_PROCESSES
from gpugate.store.codec import from_json, to_json
from gpugate.store.json_file import with_header, write_atomically, writing
from gpugate.store.version import WORKING_TREE, Version, check_out, git
from gpugate.units import item, number_of, percent, signed_percent

NOT_SLOWER, SLOWER, UNUSABLE, UNDECIDED = 0, 1, 2, 125  # 125: `git bisect run` skips the commit
PATH_HELP = "the perf tests; repeat it for several paths (default: perf_tests, else all tests that pytest finds)"
FORMAT, FORMAT_VERSION = "gpugate-comparison", 2
EXACT = ("kernel_launches", "graph_launches", "kernels", "copies", "memsets", "synchronizing_calls", "operators")
HALF_A_CALL = 0.5
MEMORY_CHANGE = 0.02  # allocators round, and the side that is built first also gets the buffers of libraries
COLUMNS = (
    Column("case", left=True),
    Column("time per step"),
    Column("interval"),
    *(Column(BILL_WORDS[name], rank=4) for name in BILL_TIMES),
    Column("verdict", left=True),
    Column("detectable", note="detectable: the slowdown that this measurement would have shown", rank=2),
    Column("outputs", note="outputs: relative L2 difference on the same inputs", rank=1),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status, the first that applies: 2 a case or a version cannot be measured, 125 a case is undecided, 1 a "
        "case is slower, 0 every case is the same or faster; a case that needs what this machine lacks does not count"
    )
    add = parser.add_argument
    add("base", metavar="BASE", help="the version to compare with: a folder, or a git ref's common ancestor with HEAD")
    add(
        "head",
        metavar="HEAD",
        nargs="?",
        default=WORKING_TREE,
        help="the version to judge: a git ref, a folder, or . for the working tree with what is uncommitted (default)",
    )
    add("--exact", action="store_true", help="compares with BASE itself, even where it has commits that HEAD lacks")
    add("--path", metavar="PATH", action="append", help=PATH_HELP)
    add("-k", dest="keyword", metavar="EXPR", help="compares the cases that pytest's -k would select")
    add("-m", dest="marker", metavar="EXPR", help="compares the cases that pytest's -m would select")
    add(
        "--budget",
        metavar="SECONDS",
        help="the most seconds that a process samples a case, without building it (default: as its record plans; "
        f"{BUDGET_S:g} without a record)",
    )
    add(
        "--processes",
        metavar="N",
        default=str(MOST_PROCESSES),
        help="the most processes that measure a case; a decided case gets no further one (default: %(default)s)",
    )
    add("--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add("--json", metavar="FILE", type=Path, help="also writes the result as JSON")
    add("--markdown", metavar="FILE", type=Path, help="also writes the output as Markdown, for a comment")


def run(arguments: argparse.Namespace) -> int:
    """Compares, prints the table, also of a comparison that is interrupted, and returns the exit status.

    Raises CompareError for a version that cannot be checked out or driven, OptionError for a wrong value, and
    KeyboardInterrupt, with the number of cases in the table.
    """
    project = Path.cwd()
    processes = whole_number("--processes", arguments.processes, MOST_PROCESSES)
    budget_s = seconds("--budget", arguments.budget) if arguments.budget is not None else None
    for option in ("json", "markdown"):  # before anything is measured
        writable(f"--{option}", getattr(arguments, option))
    words = pytest_words(arguments.path, arguments.device)
    words += ["-k", arguments.keyword] if arguments.keyword else []
    words += ["-m", arguments.marker] if arguments.marker else []
    latest: dict[int, Any] = {}  # the last message of each process
    is_cut_off = False

    def receive(number: int, message: Any) -> None:
        if not latest:
            print(number_of(len(from_json(DuetProcess, message).wanted), "case"), file=sys.stderr)
        latest[number] = message

    try:
        with (
            treat_termination_as_ctrl_c(),
            check_out(arguments.head, project) as head,
            check_out(arguments.base, project, None if arguments.exact else head.commit) as base,
        ):
            if _has_same_files(base, head):
                chance = "unless a step reads a new file, its times differ by chance alone"
                print(f"no tracked file differs from {arguments.base}: {chance}", file=sys.stderr)
            taken = measure_duets(DuetPlan(str(base.root), budget_s), head, words, processes, receive=receive)
    except KeyboardInterrupt:
        is_cut_off, taken = True, [from_json(DuetProcess, message) for message in latest.values()]
        if not any(one.measured for one in taken):
            raise
    compared = Comparison(base, head, taken, *judge_duets(taken), is_cut_off)
    print_parts(render(compared, terminal_columns()))
    if is_cut_off:
        found = len({name for one in taken for name in one.measured})
        wanted = number_of(len(taken[0].wanted), "case")
        raise KeyboardInterrupt(f"the table has {found} of {wanted}, by the processes until then")
    if arguments.json:
        _write(arguments.json, json.dumps(document(compared), indent=1) + "\n")
    if arguments.markdown:
        _write(arguments.markdown, code_block(render(compared, LOG_COLUMNS)))
    lacking = {name for one in taken for name in one.problems if name not in one.wanted}
    return exit_status(compared.duets, compared.problems.keys() - lacking)


def _has_same_files(base: Version, head: Version) -> bool:
    """True where the base is a commit and each file that git tracks in the head is as there."""
    of_commit = base.commit is not None and base.changes is None
    return of_commit and git(head.root, "diff", "--quiet", str(base.commit), "--", ".") is not None


def _write(path: Path, content: str) -> None:
    with writing(path, CompareError, "free space and repeat"):
        write_atomically(path, content)


def exit_status(duets: Sequence[Duet], problems: Collection[str]) -> int:
    """The most severe of all cases: one that cannot be measured, then UNDECIDED, then SLOWER."""
    outcomes = {duet.outcome for duet in duets}
    if problems or not duets:
        return UNUSABLE
    if DuetOutcome.UNDECIDED in outcomes:
        return UNDECIDED
    return SLOWER if DuetOutcome.SLOWER in outcomes else NOT_SLOWER


# --- the result -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The duets of two versions, from the processes `taken`, and the reasons of the cases that have none."""

    base: Version
    head: Version
    taken: Sequence[DuetProcess]
    duets: Sequence[Duet]
    problems: Mapping[str, str]
    is_cut_off: bool = False  # by Ctrl-C: further processes might decide


def render(compared: Comparison, width: int) -> list[RenderableType]:
    """The table, its notes and the summary for `width` columns."""
    table = Table(f"{compared.base.label} -> {compared.head.label}", COLUMNS, tuple(map(_row, compared.duets)))
    notes = (indent(line, 2) for line in _notes(compared))
    return [*table.drop_empty().rich(width), *notes, Text(), Text(summary(compared.duets))]


def document(compared: Comparison) -> dict[str, Any]:
    """The JSON document: both versions, each duet, and the cases that have none, with the reasons."""
    body: dict[str, Any] = {}
    for name, version in (("base", compared.base), ("head", compared.head)):
        body[name] = {"commit": version.commit, "changes": version.changes}
    body["duets"] = [to_json(duet) for duet in compared.duets]
    body["problems"] = dict(compared.problems)
    body["added"], body["removed"] = list(compared.taken[0].added), list(compared.taken[0].removed)
    return with_header(FORMAT, FORMAT_VERSION, body)


def summary(duets: Sequence[Duet]) -> str:
    """`2 cases: 1 SLOWER, 1 SAME`."""
    counts = {outcome: sum(duet.outcome is outcome for duet in duets) for outcome in DuetOutcome}
    words = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    return f"{number_of(len(duets), 'case')}{': ' if words else ''}{words}"


def _row(duet: Duet) -> tuple[str, ...]:
    return (
        duet.case_id,
        write_change(duet.ratio.median),
        write_interval(duet.ratio),
        *(_write_bill_change(duet, name) for name in BILL_TIMES),
        duet.outcome.value,
        percent(duet.detectable),
        f"{duet.relative_l2:.1e}" if duet.relative_l2 else "equal",
    )


def write_change(ratio: float) -> str:
    """Writes a ratio of times such as 1.05 as `+5.0 %`."""
    return signed_percent(ratio - 1)


def write_interval(ratio: Estimate) -> str:
    """Writes `+4.0 %..+6.1 %`."""
    return f"{write_change(ratio.low)}..{write_change(ratio.high)}"


def _write_bill_change(duet: Duet, name: str) -> str:
    """Writes the change of a time of the bill, empty where it was not measured, and of CPU time where threads spin."""
    before, after = duet.base, duet.head
    spins = name == "cpu_ms" and any(one.get("spinning") for one in (before, after))
    return write_change(after[name] / before[name]) if before.get(name) and name in after and not spins else ""


def _notes(compared: Comparison) -> Iterator[str]:
    """Yields the counts that changed, the note about the base, the load of the machine, the problems, and new cases."""
    for duet in compared.duets:
        changed = ", ".join(_counter_changes(duet))
        if changed:
            yield f"{duet.case_id}: {changed}"
    yield from filter(None, [compared.base.note])
    yield from describe_load([one for process in compared.taken for one in process.measured.values()])
    yield from (f"{name}: not measured: {reason}" for name, reason in compared.problems.items())
    if any(duet.outcome is DuetOutcome.UNDECIDED for duet in compared.duets):
        step = "give more --processes, or repeat on a quieter machine"
        yield f"UNDECIDED: {'it was interrupted, so run it again' if compared.is_cut_off else step}"
    yield from (f"{name}: only in the head" for name in compared.taken[0].added)
    yield from (f"{name}: only in the base" for name in compared.taken[0].removed)


def _counter_changes(duet: Duet) -> Iterator[str]:
    """The counts that changed by half a call per step or more: those of a pipeline have fractions."""
    before, after = duet.base, duet.head
    for name in EXACT:
        if name in before and name in after and abs(before[name] - after[name]) >= HALF_A_CALL:
            yield f"{name.replace('_', ' ')} {item(name, before[name])} -> {item(name, after[name])} per step"
    then, now = before.get("peak_bytes"), after.get("peak_bytes")
    if then is None or now is None or len(duet.processes) < 2:
        return
    if abs(now - then) > MEMORY_CHANGE * max(now, then):
        yield f"peak memory {then / 2**20:.0f} -> {now / 2**20:.0f} MiB"

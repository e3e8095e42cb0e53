"""`gpugate compare BASE [HEAD]`: the cases whose time per step differs between two versions of the code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from gpugate.errors import CompareError
from gpugate.judging.duet import judge_duets
from gpugate.results.duet import Duet, DuetOutcome, DuetProcess
from gpugate.session.duets import BUDGET_S, CACHE, DuetPlan, measure_duets, pytest_words
from gpugate.statistics.sequential import MOST_PROCESSES
from gpugate.store.version import WORKING_TREE, Version, check_out
from gpugate.units import list_names

NOT_SLOWER, SLOWER, UNUSABLE, UNDECIDED = 0, 1, 2, 125  # 125: `git bisect run` skips the commit
PATH_HELP = "perf tests, also several times (default: perf_tests, else all tests that pytest finds)"
MOST_NAMES = 3  # of cases in a sentence


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
    add("--exact", action="store_true", help="compares with BASE itself, also where it has commits that HEAD lacks")
    add("--path", metavar="PATH", action="append", help=PATH_HELP)
    add("-k", dest="keyword", metavar="EXPR", help="compares the cases that pytest's -k would select")
    add("-m", dest="marker", metavar="EXPR", help="compares the cases that pytest's -m would select")
    add(
        "--budget",
        metavar="SECONDS",
        help="most time for sampling of each case in each process, building apart (default: as planned by its record; "
        f"{BUDGET_S:g} without one)",
    )
    add(
        "--processes",
        metavar="N",
        default=str(MOST_PROCESSES),
        help="most fresh processes for a case; one that is decided gets no further one (default: %(default)s)",
    )
    add("--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add("--json", metavar="FILE", type=Path, help="writes the duets as JSON, too")
    add("--markdown", metavar="FILE", type=Path, help="writes the table as Markdown, too, for a comment")
    add("--html", metavar="FILE", type=Path, help="writes a page, too, which needs no script and no network")


def run(arguments: argparse.Namespace) -> int:
    """Compares, prints the table and returns the exit status.

    Raises CompareError for a version that cannot be checked out or driven, and OptionError for a wrong value.
    """
    from gpugate.commands.comparison import Comparison, compare_page, document, markdown, text
    from gpugate.machine.termination import treat_termination_as_ctrl_c
    from gpugate.report.terminal import stdout_takes_colour, terminal_columns
    from gpugate.session.options import seconds, whole_number, writable

    project = Path.cwd()
    processes = whole_number("--processes", arguments.processes, MOST_PROCESSES)
    budget_s = seconds("--budget", arguments.budget) if arguments.budget is not None else None
    for option in ("json", "markdown", "html"):  # before anything is measured
        writable(f"--{option}", getattr(arguments, option))
    words = pytest_words(arguments.path, arguments.device)
    words += ["-k", arguments.keyword] if arguments.keyword else []
    words += ["-m", arguments.marker] if arguments.marker else []
    with (
        treat_termination_as_ctrl_c(),
        check_out(arguments.head, project, project / CACHE) as head,
        check_out(arguments.base, project, project / CACHE, None if arguments.exact else head.commit) as base,
    ):
        refuse_missing_tests(head, words[0])
        taken = measure_duets(DuetPlan(str(base.root), budget_s), head, words, processes)
    refuse_without_common_case(base, taken[0])
    compared = Comparison(base, head, taken, *judge_duets(taken))
    sys.stdout.write(text(compared, terminal_columns(), stdout_takes_colour()))
    if arguments.json:
        _write(arguments.json, json.dumps(document(compared), indent=1) + "\n")
    if arguments.markdown:
        _write(arguments.markdown, markdown(compared))
    if arguments.html:
        _write(arguments.html, compare_page(compared))
    lacking = {name for one in taken for name in one.problems if name not in one.wanted}
    return exit_status(compared.duets, compared.problems.keys() - lacking)


def _write(path: Path, content: str | bytes) -> None:
    from gpugate.store.json_file import write_atomically

    try:
        write_atomically(path, content)
    except OSError as error:
        problem = f"{path} cannot be written ({error.strerror or error})"
        raise CompareError(f"{problem}: free space and repeat") from error


def refuse_missing_tests(head: Version, path: str) -> None:
    """Raises CompareError where the head has no such folder or file; an option names none."""
    if not (path.startswith("-") or (head.root / path.partition("::")[0]).exists()):
        raise CompareError(f"{head.label} has no {path!r}: give --path, or a head with perf tests")


def refuse_without_common_case(base: Version, process: DuetProcess) -> None:
    """Raises CompareError where the base has none of the cases: it is older than them, or has them by another name."""
    if not process.wanted and not process.problems:
        theirs = f", but {list_names(process.removed, MOST_NAMES)}" if process.removed else ""
        step = "give a base that has them under these names"
        raise CompareError(
            f"{base.label} has none of the selected cases ({list_names(process.added, MOST_NAMES)}){theirs}: {step}"
        )


def exit_status(duets: Sequence[Duet], problems: Collection[str]) -> int:
    """The most severe of all cases: one that cannot be measured, then UNDECIDED, then SLOWER."""
    outcomes = {duet.outcome for duet in duets}
    if problems or not duets:
        return UNUSABLE
    if DuetOutcome.UNDECIDED in outcomes:
        return UNDECIDED
    return SLOWER if DuetOutcome.SLOWER in outcomes else NOT_SLOWER

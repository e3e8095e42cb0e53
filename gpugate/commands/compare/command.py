"""`gpugate compare BASE [HEAD]`: the cases whose time per step differs between two versions of the code."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpugate.commands.compare.plan import FILE, DuetPlan
from gpugate.errors import CompareError
from gpugate.judging.duet import judge_duet
from gpugate.results.duet import Duet, DuetOutcome, DuetProcess
from gpugate.session.child_process import module_command
from gpugate.session.run_child import run_child
from gpugate.store.codec import to_json
from gpugate.store.version import WORKING_TREE, Version, check_out
from gpugate.units import number_of

BUDGET_S, PROCESSES = 10.0, 3
CACHE = Path(".gpugate-cache", "versions")
NOT_SLOWER, SLOWER, UNUSABLE, UNDECIDED = 0, 1, 2, 125  # 125: `git bisect run` skips the commit
LAST_LINES = 8
ERROR = "ERROR: "  # as pytest begins a usage error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status, the first that applies: 2 a case or a version cannot be measured, 125 a case is undecided, 1 a "
        "case is slower, 0 every case is the same or faster"
    )
    add = parser.add_argument
    add("base", metavar="BASE", help="the version to compare with: a git ref, or a folder")
    add(
        "head",
        metavar="HEAD",
        nargs="?",
        default=WORKING_TREE,
        help="the version to judge: a git ref, a folder, or . for the working tree with what is uncommitted (default)",
    )
    add("--path", metavar="PATH", default="perf_tests", help="perf tests of the head (default: %(default)s)")
    add("-k", dest="keyword", metavar="EXPR", help="compares the cases that pytest's -k would select")
    add("-m", dest="marker", metavar="EXPR", help="compares the cases that pytest's -m would select")
    add(
        "--budget",
        metavar="SECONDS",
        default=f"{BUDGET_S:g}",
        help="time for sampling of each case in each process, building apart (default: %(default)s)",
    )
    add(
        "--processes",
        metavar="N",
        default=str(PROCESSES),
        help="most fresh processes for a case; one that is decided gets no further one (default: %(default)s)",
    )
    add("--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add("--json", metavar="FILE", type=Path, help="writes the duets as JSON, too")
    add("--markdown", metavar="FILE", type=Path, help="writes the table as Markdown, too, for a comment")


def run(arguments: argparse.Namespace) -> int:
    """Compares, prints the table and returns the exit status.

    Raises CompareError for a version that cannot be checked out or driven, and OptionError for a wrong value.
    """
    from gpugate.commands.compare.report import document, markdown, text
    from gpugate.report.terminal import stdout_takes_colour, terminal_columns
    from gpugate.session.options import seconds, whole_number
    from gpugate.session.termination import treat_termination_as_ctrl_c
    from gpugate.store.json_file import write_atomically

    project = Path.cwd()
    processes = whole_number("--processes", arguments.processes, PROCESSES)
    budget_s = seconds("--budget", arguments.budget)
    words = pytest_words(arguments.path, arguments.device)
    words += ["-k", arguments.keyword] if arguments.keyword else []
    words += ["-m", arguments.marker] if arguments.marker else []
    with (
        treat_termination_as_ctrl_c(),
        check_out(arguments.base, project, project / CACHE) as base,
        check_out(arguments.head, project, project / CACHE) as head,
    ):
        taken = compare(base, head, words, budget_s, processes)
    duets, problems = judge(taken)
    sys.stdout.write(text(base, head, duets, taken, problems, terminal_columns(), stdout_takes_colour()))
    if arguments.json:
        with FILE.writing(arguments.json):
            write_atomically(arguments.json, json.dumps(document(base, head, duets, problems), indent=1) + "\n")
    if arguments.markdown:
        with FILE.writing(arguments.markdown):
            write_atomically(arguments.markdown, markdown(base, head, duets, taken, problems))
    return exit_status(duets, problems)


def compare(
    base: Version,
    head: Version,
    words: Sequence[str],
    budget_s: float,
    processes: int,
    open_cases: tuple[str, ...] | None = None,
) -> list[DuetProcess]:
    """Measures in one fresh process after another, until every case is decided or has had `processes` of them.

    `open_cases` are the cases to measure; None for all that are selected.

    Raises CompareError, with the cause, where a process cannot measure any case.
    """
    taken: list[DuetProcess] = []
    for number in range(processes):
        plan = DuetPlan(str(base.root), budget_s, number, open_cases)
        left = "all cases" if open_cases is None else number_of(len(open_cases), "case")
        print(f"process {number + 1} of at most {processes}: {left}", file=sys.stderr)
        taken.append(run_process(plan, head, words))
        open_cases = tuple(duet.case_id for duet in judge(taken)[0] if needs_process(duet))
        if not open_cases:
            break
    return taken


def needs_process(duet: Duet) -> bool:
    """True for a case that is not decided, which includes every change that one process alone has seen."""
    return duet.outcome is DuetOutcome.UNDECIDED


def judge(taken: Sequence[DuetProcess]) -> tuple[list[Duet], dict[str, str]]:
    """The duet of every case that was measured, in the order of the first process, and the reasons of the others."""
    names = list(dict.fromkeys(name for process in taken for name in process.measured))
    problems = {name: reason for process in taken for name, reason in process.problems.items()}
    duets = []
    for name in names:
        if any(process.measured[name].pairs for process in taken if name in process.measured):
            duets.append(judge_duet(name, taken))
        else:
            problems[name] = "the outputs of the two versions cannot be compared"
    return duets, problems


def run_process(plan: DuetPlan, head: Version, words: Sequence[str]) -> DuetProcess:
    """Measures the plan in a process in the folder of the head. Raises CompareError where it ends before a case."""
    command = module_command("gpugate.commands.compare.worker", words)
    environment = {**os.environ, "PY_COLORS": "0"}
    with tempfile.TemporaryDirectory(prefix="gpugate-duets-") as folder:
        output = Path(folder, "duets.json")
        orders = json.dumps(to_json(replace(plan, output=str(output)))).encode()
        ended = run_child(command, stdin=orders, environment=environment, folder=head.root)
        if not output.exists():  # before its first case: the cause is that of the command
            errors = [line.removeprefix(ERROR) for line in ended.output.splitlines() if line.startswith(ERROR)]
            last = "\n".join([f"a process {ended.reason}, after this output:", *ended.last_lines(LAST_LINES)])
            raise CompareError(errors[-1] if errors else last)
        process = FILE.read(output)
    lost = [name for name in process.wanted if name not in process.measured and name not in process.problems]
    return replace(process, problems={**process.problems, **dict.fromkeys(lost, f"its process {ended.reason}")})


def pytest_words(path: str, device: str) -> list[str]:
    """The arguments of pytest in a process of duets. Raises OptionError for what names no device."""
    from gpugate.session.options import device_name

    return [path, "--perf-device", device_name(device), "-q", "-p", "gpugate.plugin", "-p", "no:cacheprovider"]


def exit_status(duets: Sequence[Duet], problems: Mapping[str, str]) -> int:
    """The most severe of all cases: one that cannot be measured, then UNDECIDED, then SLOWER."""
    outcomes = {duet.outcome for duet in duets}
    if problems or not duets:
        return UNUSABLE
    if DuetOutcome.UNDECIDED in outcomes:
        return UNDECIDED
    return SLOWER if DuetOutcome.SLOWER in outcomes else NOT_SLOWER

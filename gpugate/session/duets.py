"""Duets of two versions of the code: one fresh process after another, until every case is decided."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpugate.errors import CompareError
from gpugate.faults.fault import Fault
from gpugate.judging.duet import judge_duets, needs_process
from gpugate.results.duet import DuetProcess
from gpugate.session.run_child import run_pytest
from gpugate.store.json_file import JsonFile, NextSteps
from gpugate.store.version import CACHE_FOLDER, Version
from gpugate.units import Count, Positive, number_of

BUDGET_S, PROCESSES = 15.0, 6  # of sampling a case in a process; most processes of a case
CACHE = Path(CACHE_FOLDER, "versions")  # of a project: the worktrees of its versions
HUNG = 6  # exit status of a process that hangs in C code; those of pytest are smaller


@dataclass(frozen=True)
class DuetPlan:
    """The orders of one process. `case_ids` are the cases to measure; None: all that are selected. `fault` is put into
    the head's side, whichever role it has."""

    base: str  # the folder of the base
    budget_s: Positive
    number: Count = 0  # of the process, from 0: every second one is swapped
    case_ids: tuple[str, ...] | None = None
    fault: Fault | None = None
    count: bool = True  # the work of a step, which is the same in every process
    output: str = ""  # path of the DuetProcess, in a folder that `run_process` makes
    project: str = ""  # whose search path this process has; by default the folder of the command

    @property
    def swapped(self) -> bool:
        """True where the head is the engine's reference side: what the engine does to one side then cancels."""
        return self.number % 2 == 1


FILE = JsonFile(
    "gpugate-duets",
    1,
    DuetProcess,
    CompareError,
    NextSteps(
        unreadable="compare again",
        damaged="compare again",
        other_version="compare again",
        unwritable="free space and repeat",
    ),
)


def print_message(line: str) -> None:
    print(line, file=sys.stderr)


def measure_duets(
    plan: DuetPlan,
    head: Version,
    words: Sequence[str],
    processes: int = PROCESSES,
    print_line: Callable[[str], None] = print_message,
) -> list[DuetProcess]:
    """Measures the plan in one fresh process after another, until every case is decided or has had `processes` of them.

    A process that dies costs the case that was running; a further one measures the cases that were not begun.
    `print_line` gets a line about each process. Raises CompareError, with the cause, where a process cannot measure any
    case.
    """
    taken: list[DuetProcess] = []
    most = processes
    while len(taken) < most:
        left = "all cases" if plan.case_ids is None else number_of(len(plan.case_ids), "case")
        print_line(f"process {len(taken) + 1} of at most {most}: {left}")
        taken.append(run_process(replace(plan, number=len(taken)), head, words))
        most += bool(taken[-1].unfinished)
        undecided = [duet.case_id for duet in judge_duets(taken)[0] if needs_process(duet)]
        open_cases = [name for name in undecided if _count_processes(name, taken) < processes]
        open_cases += taken[-1].unfinished
        if not open_cases:
            break
        # Cases that a process left out have no counters yet.
        plan = replace(plan, case_ids=tuple(open_cases), count=plan.count and bool(taken[-1].unfinished))
    return taken


def _count_processes(case_id: str, taken: Sequence[DuetProcess]) -> int:
    """The number of processes that measured the case, or died of it."""
    return sum(case_id in process.measured or case_id in process.problems for process in taken)


def run_process(plan: DuetPlan, head: Version, words: Sequence[str]) -> DuetProcess:
    """Measures the plan in a process in the folder of the head. Raises CompareError where it ends before a case."""
    with tempfile.TemporaryDirectory(prefix="gpugate-duets-") as folder:
        output = Path(folder, "duets.json")
        orders = replace(plan, output=str(output), project=plan.project or str(Path.cwd()))
        ended = run_pytest("gpugate.session.duet_worker", words, orders, head.root)
        if not output.exists():  # before its first case: the cause is that of the command
            raise CompareError(ended.cause("a process"))
        process = FILE.read(output)
    lost = process.unfinished[:1] if ended.status != HUNG else ()  # a case that hangs has its problem already
    return replace(process, problems={**process.problems, **dict.fromkeys(lost, f"its process {ended.reason}")})


def pytest_words(given: Sequence[str] | None, device: str) -> list[str]:
    """The arguments of pytest in a process of duets: first the perf tests, relative to this folder, so that each
    version has its own; none where pytest is to find them. Raises OptionError for what names no device."""
    from gpugate.session.options import device_name

    paths = [os.path.relpath(path) for path in given or filter(os.path.exists, ["perf_tests"])]
    return [*paths, "--perf-device", device_name(device), "-q", "-p", "gpugate.plugin", "-p", "no:cacheprovider"]

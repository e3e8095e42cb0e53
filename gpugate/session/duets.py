"""Duets of two versions of the code: one fresh process after another, until every case is decided."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from gpugate.errors import CompareError
from gpugate.faults.fault import Fault
from gpugate.judging.duet import judge_duets
from gpugate.machine.children import run_module
from gpugate.results.duet import Duet, DuetOutcome, DuetProcess
from gpugate.session.options import device_name
from gpugate.statistics.sequential import MOST_PROCESSES
from gpugate.store.codec import from_json, to_json
from gpugate.store.version import Version
from gpugate.units import Count, Positive, number_of

HUNG = 6  # exit status of a process that hangs in C code; those of pytest are smaller


@dataclass(frozen=True)
class DuetPlan:
    """The orders of one process. `case_ids` are the cases to measure; None: all that are selected. `fault` is put into
    the head's side, whichever role it has. `budget_s` is the most that sampling a case takes; None: as planned by its
    record, or BUDGET_S."""

    base: str  # the folder of the base
    budget_s: Positive | None = None
    number: Count = 0  # of the process, from 0: every second one is swapped
    case_ids: tuple[str, ...] | None = None
    fault: Fault | None = None
    count: bool = True  # the work of a step, which is the same in every process
    project: str = field(default_factory=os.getcwd)  # whose search path the process has

    @property
    def swapped(self) -> bool:
        """True where the head is the engine's reference side: what the engine does to one side then cancels."""
        return self.number % 2 == 1


def measure_duets(
    plan: DuetPlan,
    head: Version,
    words: Sequence[str],
    processes: int = MOST_PROCESSES,
    print_line: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    limit_s: float | None = None,
    receive: Callable[[int, Any], object] = lambda number, message: None,
) -> list[DuetProcess]:
    """Measures the plan in one fresh process after another, until every case is decided or has had `processes` of them.

    A process that dies costs the case that was running; a further one measures the cases that were not begun. No
    process begins that would end more than `limit_s` after the beginning, if it took as long as the longest before it,
    unless a case seems slower, which alone is measured then: a slowdown that lacks one process is decided.
    `print_line` gets a line about each process, and `receive` each of its messages, with its number from 0: a
    DuetProcess in JSON with all that it has measured. Raises CompareError, with the cause, where the first process
    cannot measure any case, and where it has measured none by then; a later one that cannot ends the duets.
    """
    taken, judged = list[DuetProcess](), list[Duet]()
    most, began_s, longest_s = processes, perf_counter(), 0.0
    while len(taken) < most:
        spent_s = perf_counter() - began_s
        left_s = None if limit_s is None else limit_s - spent_s
        if left_s is not None and taken and longest_s > left_s:
            slower = {duet.case_id for duet in judged if duet.seems_slower} & taken[-1].measured.keys()
            if not slower:
                break
            plan, left_s = replace(plan, case_ids=tuple(sorted(slower))), 2 * longest_s
        left = "all cases" if plan.case_ids is None else number_of(len(plan.case_ids), "case")
        print_line(f"process {len(taken) + 1} of at most {most}: {left}")
        orders = replace(plan, number=len(taken))
        try:
            process = run_process(orders, head, words, left_s, partial(receive, orders.number))
        except CompareError:
            if not taken:
                raise
            break
        if process is None:
            break
        taken.append(process)
        longest_s = max(longest_s, perf_counter() - began_s - spent_s)
        most += bool(taken[-1].unfinished)
        judged, _ = judge_duets(taken)
        undecided = [duet.case_id for duet in judged if duet.outcome is DuetOutcome.UNDECIDED]
        had = Counter(name for process in taken for name in (*process.measured, *process.problems))
        open_cases = [name for name in undecided if had[name] < processes]
        open_cases += taken[-1].unfinished
        if not open_cases:
            break
        # Cases that a process left out have no counters yet.
        plan = replace(plan, case_ids=tuple(open_cases), count=plan.count and bool(taken[-1].unfinished))
    if not taken:
        within = f"within {limit_s:.4g} s, all that was left to the case"
        raise CompareError(f"the duet was cut off: a process did not end {within}")
    return taken


def run_process(
    plan: DuetPlan, head: Version, words: Sequence[str], timeout_s: float | None, receive: Callable[[Any], object]
) -> DuetProcess | None:
    """Measures the plan in a process in the folder of the head.

    What a process measured within `timeout_s` counts; None where that is nothing. Raises CompareError where the process
    ends before a case.
    """
    ended = run_module("gpugate.session.duet_worker", words, to_json(plan), timeout_s, receive, folder=head.root)
    process = from_json(DuetProcess, ended.messages[-1]) if ended.messages else None
    if ended.status is None and (process is None or not process.measured):
        return None
    if process is None:  # it ended before its first case: the cause is that of the command
        raise CompareError(ended.explain("a process"))
    # A case that hangs has its problem already, and one that is cut off has none.
    lost = process.unfinished[:1] if ended.status not in (HUNG, None) else ()
    return replace(process, problems={**process.problems, **dict.fromkeys(lost, f"its process {ended.reason}")})


def pytest_words(given: Sequence[str] | None, device: str) -> list[str]:
    """The arguments of pytest in a process of duets: first the perf tests, relative to this folder, so that each
    version has its own; none where pytest is to find them. Raises OptionError for what names no device."""
    paths = [os.path.relpath(path) for path in given or filter(os.path.exists, ["perf_tests"])]
    return [*paths, "--perf-device", device_name(device), "-q", "-p", "gpugate.plugin", "-p", "no:cacheprovider"]

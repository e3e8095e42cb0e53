"""Trials of duets: the project against itself as `gpugate compare . .` measures it, with a slowdown in the head.

One file per trial, with a random word in its name: the files of several machines may be copied into one folder.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpugate.faults.fault import Fault
from gpugate.machine.children import program_command, start_child
from gpugate.machine.processes import treat_termination_as_ctrl_c
from gpugate.results.duet import DuetProcess
from gpugate.session.duets import CACHE, DuetPlan, measure_duets
from gpugate.store.json_file import JsonFile
from gpugate.store.version import WORKING_TREE, check_out
from gpugate.units import Count, NotNegative, number_of
from tools.archive import list_files
from tools.trust.selection import Conditions, TrustError, select

BUSY = (sys.executable, "-I", "-S", "-c", "while True: pass")
_NAME = re.compile(r"duets-([0-9a-f]+)\.json")
_WORD_BYTES = 4
_AGAIN = "delete it and take its trial again"


@dataclass(frozen=True)
class DuetTrial:
    """One comparison of the project with itself, in which the head's sides were `slow_percent` slower; 0 is A/A.

    `word` is the random word in the name of its file. Other programs kept `busy_cores` busy meanwhile. `processes` have
    the times of all pairs, but no profiles, checks and differences.
    """

    word: str
    conditions: Conditions
    busy_cores: Count
    slow_percent: NotNegative
    processes: tuple[DuetProcess, ...]

    @property
    def case_ids(self) -> set[str]:
        """The cases of which this is a trial: all that had pairs and no problem in any process."""
        measured = {name for one in self.processes for name, found in one.measured.items() if found.pairs}
        return measured - {name for one in self.processes for name in one.problems}

    @property
    def path(self) -> str:
        return f"duets-{self.word}.json"


FILE = JsonFile(
    "gpugate-duet-trial",
    1,  # History: 1: one comparison.
    DuetTrial,
    TrustError,
    step=_AGAIN,
    unwritable="make room, every trial before it is kept",
)


@dataclass(frozen=True)
class DuetOrders:
    """`trials` of each case by each percentage of `slow_percents`; `words` are pytest's arguments."""

    trials: int
    slow_percents: tuple[float, ...]
    budget_s: float
    busy_cores: int
    words: Sequence[str]


def read_duets(folder: Path) -> list[DuetTrial]:
    """Raises TrustError, naming the file, for one that cannot be read, is a copy or is of other conditions."""
    found: list[DuetTrial] = []
    for path in (path for path in list_files(folder, "duets-*.json") if _NAME.fullmatch(path.name)):
        trial = FILE.read(path)
        if trial.path != path.name:
            raise TrustError(f"{path} holds the trial of {trial.path}: it is a copy or was renamed, delete it")
        _check_same(found, trial.conditions, trial.busy_cores, str(path))
        found.append(trial)
    return found


def _check_same(earlier: Sequence[DuetTrial], conditions: Conditions, busy_cores: int, what: str) -> None:
    """Raises TrustError with the differences where trials of both must not be counted together."""
    for trial in earlier:
        trial.conditions.check_same(conditions, what)
        if trial.busy_cores != busy_cores:
            changed = f"--busy-cores {trial.busy_cores} -> {busy_cores}"
            raise TrustError(f"{what} is of other conditions than earlier trials ({changed}): give another folder")


def take_duets(orders: DuetOrders, folder: Path) -> None:
    """Takes what is missing, one comparison after another.

    A case that cannot be measured in a trial is left out of later ones. Raises TrustError where the selected cases are
    of other conditions than the trials in the folder, and CompareError where a process measures no case.
    """
    earlier = read_duets(folder)
    selected = select(orders.words, orders.budget_s)
    _check_same(earlier, selected.conditions, orders.busy_cores, "this run")
    counts = Counter((name, trial.slow_percent) for trial in earlier for name in trial.case_ids)
    left_out: dict[str, str] = dict(selected.skipped)
    project = Path.cwd()
    with (
        treat_termination_as_ctrl_c(),
        keep_busy(orders.busy_cores),
        check_out(WORKING_TREE, project, project / CACHE) as version,
    ):
        while (
            wanted := next_trial(orders, [one for one in selected.case_ids if one not in left_out], counts)
        ) is not None:
            slow_percent, case_ids = wanted
            print(f"{slow_percent:g} % slower: {number_of(len(case_ids), 'case')}", file=sys.stderr)
            fault = Fault("slow", slow_percent) if slow_percent else None
            plan = DuetPlan(str(version.root), orders.budget_s, case_ids=case_ids, fault=fault, count=False)
            taken = measure_duets(plan, version, orders.words)
            processes = tuple(map(_keep_times, taken))
            word = secrets.token_hex(_WORD_BYTES)
            trial = DuetTrial(word, selected.conditions, orders.busy_cores, slow_percent, processes)
            FILE.write(folder / trial.path, trial)
            counts.update((name, slow_percent) for name in trial.case_ids)
            problems = {name: reason for one in processes for name, reason in one.problems.items()}
            left_out |= {name: problems.get(name, "it has no pairs") for name in case_ids if name not in trial.case_ids}
    for name, reason in left_out.items():
        print(f"not measured: {name}: {reason}", file=sys.stderr)


def next_trial(
    orders: DuetOrders, case_ids: Collection[str], counts: Mapping[tuple[str, float], int]
) -> tuple[float, tuple[str, ...]] | None:
    """The slowdown of the next trial and the cases that lack it; None where no trial is missing.

    Slowdowns take turns, so that what the machine does in the meantime meets all of them.
    """
    for number in range(1, orders.trials + 1):
        for slow_percent in orders.slow_percents:
            lacking = tuple(name for name in case_ids if counts.get((name, slow_percent), 0) < number)
            if lacking:
                return slow_percent, lacking
    return None


@contextmanager
def keep_busy(cores: int) -> Iterator[None]:
    """Runs one loop per core that does nothing else until the block ends."""
    with ExitStack() as stack:
        for _ in range(cores):
            stack.enter_context(start_child(program_command(BUSY)))
        yield


def _keep_times(process: DuetProcess) -> DuetProcess:
    """The process without profiles, checks and differences, which no verdict needs and which are most of a file."""
    kept = {
        name: replace(found, reference_profile=None, optimized_profile=None, step_checks=None, differences=())
        for name, found in process.measured.items()
    }
    return replace(process, measured=kept)

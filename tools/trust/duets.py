"""Trials of duets: the project against itself as `gpugate compare . .` measures it, with a slowdown in the head.

One file per trial, with a random word in its name: the files of several machines may be copied into one folder.
"""

from __future__ import annotations

import itertools
import re
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.faults.fault import Fault
from gpugate.machine.children import start_child
from gpugate.machine.environment import Environment, compare
from gpugate.machine.processes import treat_termination_as_ctrl_c
from gpugate.results.duet import DuetProcess
from gpugate.session.duets import DuetPlan, measure_duets
from gpugate.store.json_file import JsonFile
from gpugate.store.version import WORKING_TREE, check_out
from gpugate.units import Count, NotNegative, Positive
from tools.archive import list_files

_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # it ends with this process
BUSY = (sys.executable, "-I", "-S", "-c", _LOOP)
_NAME = re.compile(r"duets-([0-9a-f]+)\.json")
_WORD_BYTES = 4
_AGAIN = "delete it and take its trial again"


class TrustError(GpugateError):
    """Trials cannot be taken, kept or continued."""


@dataclass(frozen=True)
class Conditions:
    """The conditions that trials must share to be counted together. `source_hashes` are of older files."""

    environment: Environment
    budget_s: Positive
    source_hashes: Mapping[str, str] = field(default_factory=dict)


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
    """`trials` of all selected cases by each percentage of `slow_percents`; `words` are pytest's arguments."""

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
        check_same(found, trial, str(path))
        found.append(trial)
    return found


def check_same(earlier: Sequence[DuetTrial], trial: DuetTrial, what: str) -> None:
    """Raises TrustError with the differences where the trial must not be counted together with earlier ones."""
    for one in earlier:
        then, now = one.conditions, trial.conditions
        changed = list(compare(then.environment, now.environment).differences)
        if then.budget_s != now.budget_s:
            changed.append(f"budget {then.budget_s:g} s -> {now.budget_s:g} s")
        if one.busy_cores != trial.busy_cores:
            changed.append(f"--busy-cores {one.busy_cores} -> {trial.busy_cores}")
        if changed:
            differences = "; ".join(changed)
            raise TrustError(f"{what} is of other conditions than earlier trials ({differences}): give another folder")


def take_duets(orders: DuetOrders, folder: Path) -> None:
    """Takes what is missing, one comparison after another. Slowdowns take turns, so that what the machine does in the
    meantime meets all of them.

    A case that cannot be measured in a trial is left out of later ones. Raises TrustError for a trial of other
    conditions than those in the folder, or of no case, and CompareError where a process measures no case.
    """
    earlier, project = read_duets(folder), Path.cwd()
    for one in earlier[:1]:  # the environment is known after the first process
        conditions = replace(one.conditions, budget_s=orders.budget_s)
        check_same(earlier, replace(one, conditions=conditions, busy_cores=orders.busy_cores), "this run")
    taken = Counter(trial.slow_percent for trial in earlier)
    case_ids: tuple[str, ...] | None = None
    with (
        treat_termination_as_ctrl_c(),
        keep_busy(orders.busy_cores),
        check_out(WORKING_TREE, project) as version,
    ):
        for number, slow_percent in itertools.product(range(orders.trials), orders.slow_percents):
            if taken[slow_percent] > number:
                continue
            print(f"trial {number + 1} of {orders.trials}, {slow_percent:g} % slower", file=sys.stderr)
            fault = Fault("slow", slow_percent) if slow_percent else None
            plan = DuetPlan(str(version.root), orders.budget_s, case_ids=case_ids, fault=fault, count=False)
            processes = tuple(map(_keep_times, measure_duets(plan, version, orders.words)))
            conditions = Conditions(processes[0].environment, orders.budget_s)
            word = secrets.token_hex(_WORD_BYTES)
            trial = DuetTrial(word, conditions, orders.busy_cores, slow_percent, processes)
            check_same(earlier, trial, "this run")
            problems = {name: reason for one in processes for name, reason in one.problems.items()}
            for name, reason in problems.items():
                print(f"not measured: {name}: {reason}", file=sys.stderr)
            if not trial.case_ids:
                raise TrustError(f"no case has pairs: {next(iter(problems.values()), 'none is selected')}")
            FILE.write(folder / trial.path, trial)
            case_ids = tuple(sorted(trial.case_ids))


@contextmanager
def keep_busy(cores: int) -> Iterator[None]:
    """Runs one loop per core that does nothing else until the block ends."""
    with ExitStack() as stack:
        for _ in range(cores):
            stack.enter_context(start_child(BUSY))
        yield


def _keep_times(process: DuetProcess) -> DuetProcess:
    """The process without profiles, checks and differences, which no verdict needs and which are most of a file."""
    kept = {
        name: replace(found, reference_profile=None, optimized_profile=None, step_checks=None, differences=())
        for name, found in process.measured.items()
    }
    return replace(process, measured=kept)

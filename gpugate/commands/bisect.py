"""`gpugate bisect CASE --good A [--bad B]`: the commit from which on a case is slower than in the good end."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import numpy.typing as npt

from gpugate.commands.compare import NOT_SLOWER, PATH_HELP, SLOWER, UNDECIDED, write_change, write_interval
from gpugate.errors import CompareError
from gpugate.explaining.autopsy import explain_duet
from gpugate.judging.duet import judge_duets, time_ratio
from gpugate.results.duet import DuetOutcome
from gpugate.session.duets import CACHE, DuetPlan, measure_duets, pytest_words, run_process
from gpugate.statistics.intervals import Estimate
from gpugate.statistics.sequential import ALTERNATIVE
from gpugate.store.version import Version, check_out, find_commit, git, suggest_commit
from gpugate.units import SHORT_COMMIT

MISLEADING = 0.2  # the share of single measurements that may be wrong
CERTAIN = 0.99  # of one commit, or of the whole range between commits that cannot be measured
AHEAD = 6  # so many more measurements of the end must be slower than not: chance gives that in 1 of 4,000 searches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 the culprit is named and confirmed, 1 the two ends do not differ, 2 the case or an end cannot "
        "be measured, 125 no commit is certain"
    )
    add = parser.add_argument
    add("case", metavar="CASE", help="the id of the case, such as two-layer-net/all/cuda")
    add("--good", metavar="REF", required=True, help="a commit in which the case was fast")
    add("--bad", metavar="REF", default="HEAD", help="a later commit in which it is slower (default: HEAD)")
    add("--path", metavar="PATH", action="append", help=PATH_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Searches, prints the commit with its change and the likely cause, and returns the exit status.

    Raises CompareError for ends that cannot be measured, and OptionError for a case without a device.
    """
    from gpugate.machine.processes import treat_termination_as_ctrl_c

    project = Path.cwd()
    device = arguments.case.rpartition("/")[2]
    words = [*pytest_words(arguments.path, device), "-k", arguments.case]  # without -k a CPU leaves cases out
    with (
        treat_termination_as_ctrl_c(),
        check_out(arguments.good, project, project / CACHE) as good,
    ):
        commits = list_commits(project, arguments.good, arguments.bad)
        search = Search(arguments.case, good, commits, words)
        culprits = search.find()
        if not search.bisection.ends_differ:
            change = f"{write_change(search.end_ratio)} per step"
            print(f"{arguments.case} is not slower in {arguments.bad} than in {arguments.good}: {change}")
            return SLOWER
        if len(culprits) != 1:
            print(f"no commit is certain: {', '.join(map(search.name, culprits)) or 'none can be measured'}")
            return UNDECIDED
        return search.confirm(culprits[0])


def list_commits(project: Path, good: str, bad: str) -> list[str]:
    """The commits after `good` up to `bad`, the oldest first, along the first parents.

    Raises CompareError where `bad` is no commit or `good` no ancestor of it.
    """
    commit = find_commit(bad, project)
    if git(project, "merge-base", "--is-ancestor", good, commit) is None:
        step = suggest_commit(project, "give a commit before it")
        raise CompareError(f"{good!r} is no ancestor of {bad!r}: {step}")
    found = git(project, "rev-list", "--first-parent", "--reverse", f"{good}..{commit}")
    if not found:
        raise CompareError(f"there is no commit between {good!r} and {bad!r}: give an earlier --good or a later --bad")
    return found.split()


@dataclass
class Search:
    """Measures commits against the good end in fresh processes; `commits` are numbered from 1."""

    case_id: str
    good: Version
    commits: Sequence[str]
    words: Sequence[str]
    bisection: Bisection = field(init=False)
    ends: list[float] = field(default_factory=list)
    measured: int = 0

    def __post_init__(self) -> None:
        self.bisection = Bisection(len(self.commits))

    def find(self) -> list[int]:
        """Measures until the search is over; returns the culprits. Raises CompareError for an end without a time."""
        while (commit := self.bisection.next_commit()) is not None:
            self._measure(commit)
        return self.bisection.culprits()

    def name(self, commit: int) -> str:
        return self.commits[commit - 1][:SHORT_COMMIT]

    @property
    def end_ratio(self) -> float:
        """The time of the bad end over that of the good one, the mean of all measurements."""
        return geometric_mean(self.ends)

    def _measure(self, commit: int) -> None:
        """Counts one measurement of the commit; one that cannot be measured is left out of the search.

        The border between slower and not is half of the change between the ends; for the end itself it is half of the
        smallest change that a duet tests for.
        """
        is_end, place = commit == len(self.commits), f"{self.name(commit)} ({commit} of {len(self.commits)})"
        border = 1 + ALTERNATIVE / 2 if is_end or not self.ends else math.sqrt(self.end_ratio)
        with check_out(self.commits[commit - 1], Path.cwd(), Path.cwd() / CACHE) as head:
            found = self._time(head)
        if isinstance(found, str):
            if is_end:
                problem = f"{self.case_id} cannot be measured in {self.name(commit)} ({found})"
                raise CompareError(f"{problem}: give another --bad")
            self.bisection.unmeasurable.add(commit)
            print(f"{place}: left out: {found}", file=sys.stderr)
            return
        self.ends += [found.median] if is_end else []
        slower = found.median > border
        self.bisection.add(commit, slower)
        words = f"{write_change(found.median)} ({write_interval(found)})"
        print(f"{place}: {words}: {'slower' if slower else 'not slower'}", file=sys.stderr)

    def _time(self, head: Version) -> Estimate | str:
        """The time of the case over that of the good end, from a fresh process, or the reason why it has none.

        Raises CompareError where the good end has no such case.
        """
        self.measured += 1
        plan = DuetPlan(str(self.good.root), number=self.measured, case_ids=(self.case_id,), count=False)
        try:
            process = run_process(plan, head, self.words)
        except CompareError as error:
            return str(error)
        if self.case_id in process.added:
            raise CompareError(
                f"{self.good.label} has no case {self.case_id}: give a later --good, or the case's id there"
            )
        found, problem = process.measured.get(self.case_id), process.problems.get(self.case_id, "it has no such case")
        if found is None:
            return problem
        if not found.pairs:
            return "its outputs differ in form"
        return time_ratio(found, process.swapped)

    def confirm(self, commit: int) -> int:
        """Compares the culprit with the commit before it, and prints its change with the likely cause."""
        project = Path.cwd()
        before = self.commits[commit - 2] if commit > 1 else str(self.good.root)
        with (
            check_out(before, project, project / CACHE) as base,
            check_out(self.commits[commit - 1], project, project / CACHE) as head,
        ):
            plan = DuetPlan(str(base.root), case_ids=(self.case_id,))
            taken = measure_duets(plan, head, self.words)
        duets, problems = judge_duets(taken)
        subject = git(project, "show", "--no-patch", "--format=%s", self.commits[commit - 1]) or ""
        print(f"{self.name(commit)} {subject}")
        if not duets:
            print(f"{self.case_id} was not confirmed: {'; '.join(problems.values())}")
            return UNDECIDED
        ratio, outcome = duets[0].ratio, duets[0].outcome
        change = f"{write_change(ratio.median)} ({write_interval(ratio)}) per step"
        print(f"{self.case_id} against the commit before: {change}: {outcome.value}")
        for sentence in explain_duet(taken[0].measured[self.case_id], taken[0].swapped).sentences:
            print(f"  {sentence}")
        return NOT_SLOWER if outcome is DuetOutcome.SLOWER else UNDECIDED


@dataclass
class Bisection:
    """A probabilistic bisection of `count` commits, numbered from 1; 0 is the good end.

    Each commit has the probability of being the culprit. A measurement of commit i that is slower multiplies those of
    the commits up to i by 1 - MISLEADING and the others by MISLEADING, and one that is not the other way round. The
    next commit to measure halves the probability (Horstein, Sequential transmission using noiseless feedback, IEEE
    Transactions on Information Theory 9, 1963).
    """

    count: int
    unmeasurable: set[int] = field(default_factory=set)
    end_balance: int = 0  # measurements of the end: those that were slower less the others
    _probability: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self._probability = np.full(self.count, 1 / self.count)

    @property
    def ends_differ(self) -> bool | None:
        """True where the end is slower, False where it is not; None while it must be measured again."""
        return None if abs(self.end_balance) < AHEAD else self.end_balance > 0

    def add(self, commit: int, slower: bool) -> None:
        """Counts a measurement of a commit against the good end."""
        if commit == self.count:
            self.end_balance += 1 if slower else -1
        likelihood = np.where(np.arange(1, self.count + 1) <= commit, 1 - MISLEADING, MISLEADING)
        self._probability *= likelihood if slower else 1 - likelihood
        self._probability /= self._probability.sum()

    def next_commit(self) -> int | None:
        """The commit to measure next; None where the search is over."""
        if self.ends_differ is None:
            return self.count
        if not self.ends_differ or self.culprits():
            return None
        up_to = np.cumsum(self._probability)
        measurable = [commit for commit in range(1, self.count + 1) if commit not in self.unmeasurable]
        return min(measurable, key=lambda commit: abs(float(up_to[commit - 1]) - 0.5), default=None)

    def culprits(self) -> list[int]:
        """The one culprit, or the commits of a range that cannot be told apart; empty while it is not certain."""
        first = 1
        for last in range(1, self.count + 1):
            if last in self.unmeasurable:
                continue  # this commit and the next one cannot be told apart
            if float(self._probability[first - 1 : last].sum()) >= CERTAIN:
                return list(range(first, last + 1))
            first = last + 1
        return []

"""`gpugate bisect CASE --good A [--bad B]`: the commit from which on a case is slower than in the good end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpugate.commands.compare import NOT_SLOWER, PATH_HELP, SLOWER, UNDECIDED, write_change, write_interval
from gpugate.errors import CompareError, OptionError
from gpugate.explaining.autopsy import explain_duet
from gpugate.judging.duet import judge_duets
from gpugate.machine.processes import treat_termination_as_ctrl_c
from gpugate.results.duet import Duet, DuetOutcome, DuetProcess
from gpugate.session.duets import DuetPlan, measure_duets, pytest_words
from gpugate.store.version import Version, check_out, find_commit, git, suggest_commit
from gpugate.units import SHORT_COMMIT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 the culprit is named and confirmed, 1 the two ends do not differ, 2 the case or an end cannot "
        "be measured, 125 no commit is certain"
    )
    add = parser.add_argument
    add("case", metavar="CASE", help="the id of the case, WORKLOAD/OPTIMIZATION/DEVICE")
    add("--good", metavar="REF", required=True, help="a commit in which the case was fast")
    add("--bad", metavar="REF", default="HEAD", help="a later commit in which it is slower (default: HEAD)")
    add("--path", metavar="PATH", action="append", help=PATH_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Searches, prints the commit with its change and the likely cause, and returns the exit status.

    Raises CompareError for ends that cannot be measured, and OptionError for a case without a device.
    """
    project = Path.cwd()
    if "/" not in arguments.case:
        step = "give WORKLOAD/OPTIMIZATION/DEVICE, as pytest --collect-only -q lists them"
        raise OptionError(f"{arguments.case} is no id of a case: {step}")
    device = arguments.case.rpartition("/")[2]
    words = [*pytest_words(arguments.path, device), "-k", arguments.case]  # without -k a CPU leaves cases out
    with treat_termination_as_ctrl_c(), check_out(arguments.good, project) as good:
        search = Search(arguments.case, good, list_commits(project, arguments.good, arguments.bad), words)
        end = search.measure_end()
        change = f"{write_change(end.ratio.median)} per step"
        if end.outcome is DuetOutcome.UNDECIDED:
            print(f"no commit is certain: {arguments.bad} is UNDECIDED against {arguments.good}, {change}")
            return UNDECIDED
        if end.outcome is not DuetOutcome.SLOWER:
            print(f"{arguments.case} is not slower in {arguments.bad} than in {arguments.good}: {change}")
            return SLOWER
        culprits = find_culprits(len(search.commits), search.is_slower)
        if len(culprits) > 1:
            print(f"no commit is certain: {', '.join(map(search.name, culprits))}")
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


def find_culprits(count: int, is_slower: Callable[[int], bool | None]) -> list[int]:
    """The commit from which on the case is slower, of commits that are numbered from 1 and of which the last is slower.

    `is_slower` gives None for a commit that decides nothing: it is left out, and where the culprit may be such a
    commit, all candidates are returned.
    """
    fast, slow, left_out = 0, count, set[int]()
    while between := [commit for commit in range(fast + 1, slow) if commit not in left_out]:
        middle = between[len(between) // 2]
        slower = is_slower(middle)
        if slower is None:
            left_out.add(middle)
        elif slower:
            slow = middle
        else:
            fast = middle
    return list(range(fast + 1, slow + 1))


@dataclass(frozen=True)
class Search:
    """Duets of a case in fresh processes, of commits that are numbered from 1 against the good end."""

    case_id: str
    good: Version
    commits: Sequence[str]
    words: Sequence[str]

    def name(self, commit: int) -> str:
        return self.commits[commit - 1][:SHORT_COMMIT]

    def _print(self, commit: int, words: str) -> None:
        print(f"{self.name(commit)} ({commit} of {len(self.commits)}): {words}", file=sys.stderr)

    def measure_end(self) -> Duet:
        """The duet of the last commit. Raises CompareError where that or the good end cannot be measured."""
        end = len(self.commits)
        found, taken = self._measure(self.good, end)
        if any(self.case_id in process.added for process in taken):
            step = "give a later --good, or the case's id there"
            raise CompareError(f"{self.good.label} has no case {self.case_id}: {step}")
        if isinstance(found, str):
            step = "give another case or --bad"
            raise CompareError(f"{self.case_id} cannot be measured in {self.name(end)} ({found}): {step}")
        return found

    def is_slower(self, commit: int) -> bool | None:
        """Compares a commit with the good end; None where it cannot be measured or stays UNDECIDED."""
        found, _ = self._measure(self.good, commit)
        if isinstance(found, str):
            self._print(commit, f"left out: {found}")
            return None
        return None if found.outcome is DuetOutcome.UNDECIDED else found.outcome is DuetOutcome.SLOWER

    def _measure(self, base: Version, commit: int, count: bool = False) -> tuple[Duet | str, Sequence[DuetProcess]]:
        """The duet of a commit against a base, or the reason why there is none, and its processes."""
        plan, project = DuetPlan(str(base.root), case_ids=(self.case_id,), count=count), Path.cwd()
        with check_out(self.commits[commit - 1], project) as head:
            try:
                taken = measure_duets(plan, head, self.words)
            except CompareError as error:
                return str(error), ()
        duets, problems = judge_duets(taken)
        if not duets:
            return problems.get(self.case_id, "it has no such case"), taken
        ratio, outcome = duets[0].ratio, duets[0].outcome
        self._print(commit, f"{write_change(ratio.median)} ({write_interval(ratio)}): {outcome.value}")
        return duets[0], taken

    def confirm(self, commit: int) -> int:
        """Compares the culprit with the commit before it, and prints its change with the likely cause."""
        project = Path.cwd()
        before = self.commits[commit - 2] if commit > 1 else str(self.good.root)
        with check_out(before, project) as base:
            found, taken = self._measure(base, commit, count=True)
        subject = git(project, "show", "--no-patch", "--format=%s", self.commits[commit - 1]) or ""
        print(f"{self.name(commit)} {subject}")
        if isinstance(found, str):
            print(f"{self.case_id} was not confirmed: {found}")
            return UNDECIDED
        change = f"{write_change(found.ratio.median)} ({write_interval(found.ratio)}) per step"
        print(f"{self.case_id} against the commit before: {change}: {found.outcome.value}")
        measured = taken[0].measured[self.case_id]
        for sentence in explain_duet(measured, taken[0].swapped, found.ratio.median).sentences:
            print(f"  {sentence}")
        return NOT_SLOWER if found.outcome is DuetOutcome.SLOWER else UNDECIDED

"""The code that a record was measured with, beside the code of this run: worktrees, and duets in fresh processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.errors import CompareError
from gpugate.results.duet import RecordedCode
from gpugate.results.run import Provenance
from gpugate.session.duets import CACHE, DuetPlan, measure_duets
from gpugate.session.fresh_process import repeat_options
from gpugate.session.options import AUTO, Options
from gpugate.store.provenance import find_commit_with
from gpugate.store.version import Version, check_out, git, suggest_commit
from gpugate.units import SHORT_COMMIT

if TYPE_CHECKING:
    import torch


@dataclass
class RecordedVersions:
    """The worktrees of the versions that a session compares with. `close` removes them."""

    project: Path
    _versions: dict[str, Version] = field(default_factory=dict)
    _closing: ExitStack = field(default_factory=ExitStack)

    def check_out(self, ref: str, head: str | None) -> Version:
        """The version as a folder, until `close`. Raises CompareError for one that is not there."""
        if ref not in self._versions:
            self._versions[ref] = self._closing.enter_context(check_out(ref, self.project, self.project / CACHE, head))
        return self._versions[ref]

    def close(self) -> None:
        self._closing.close()


def choose_ref(against: str, recorded: Provenance | None, project: Path) -> str:
    """The git ref to compare with: the recorded commit, else one with the recorded files. Raises CompareError."""
    if against != AUTO:
        return against
    if recorded is None or recorded.commit is None:
        raise CompareError(
            "the record does not contain its commit: give --against REF, or commit the code and record again"
        )
    is_there = git(project, "cat-file", "-e", f"{recorded.commit}^{{commit}}") is not None
    found = find_commit_with(recorded.files or (), project) if recorded.changes or not is_there else recorded.commit
    if found is not None:
        return found
    name, branch = recorded.commit[:SHORT_COMMIT], f" of branch {recorded.branch}" if recorded.branch else ""
    if recorded.changes is not None:
        problem = f"the record is of {name} with uncommitted changes, which no commit of this history is known to have"
        raise CompareError(f"{problem}: commit first and record again, or give --against REF")
    step = "a squash or rebase drops it; record on the default branch, or give --against REF"
    raise CompareError(f"the recorded commit {name}{branch} is not in this clone: {suggest_commit(project, step)}")


def compare_code(
    versions: RecordedVersions,
    ref: str,
    case_id: str,
    node_id: str,
    options: Options,
    device: torch.device,
    print_line: Callable[[str], None],
    limit_s: float,
) -> RecordedCode:
    """Measures the duet of one case with the version `ref`, in fresh processes while this one waits, for at most
    `limit_s`.

    Raises CompareError where the version cannot be checked out, driven or measured, and where no test of the head
    measures the case itself.
    """
    base = versions.check_out(ref, head=None if options.against == AUTO else "HEAD")
    head = Version(".", versions.project)
    words = [node_id, *repeat_options(options, device, head.root), f"--perf-baselines={options.baselines_path}"]
    plan = DuetPlan(str(base.root), case_ids=(case_id,), fault=options.fault, project=str(head.root))
    taken = measure_duets(plan, head, words, print_line=print_line, limit_s=limit_s)
    problems = [process.problems[case_id] for process in taken if case_id in process.problems]
    missing = f"{case_id} is not in {ref}" if any(case_id in process.added for process in taken) else None
    problem = missing or next(iter(problems), None)
    if problem is None and not any(case_id in process.measured for process in taken):
        raise CompareError(f"{node_id} measures a sweep alone: select a test of the case {case_id} itself, too")
    return RecordedCode(base.commit or ref, processes=tuple(taken), problem=problem)

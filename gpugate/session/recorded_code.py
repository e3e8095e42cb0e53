"""The code that a record was measured with, beside the code of this run: worktrees, and duets in fresh processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.errors import CompareError
from gpugate.results.duet import RecordedCode
from gpugate.results.provenance import Provenance
from gpugate.session.duets import CACHE, DuetPlan, measure_duets
from gpugate.session.options import AUTO, Options
from gpugate.store.version import Version, check_out, hash_changes

if TYPE_CHECKING:
    import torch


@dataclass
class RecordedVersions:
    """The worktrees of the versions that a session compares with. `close` removes them."""

    project: Path
    ignored: tuple[Path, ...] = ()  # folders whose changes are no change of the code
    _versions: dict[str, Version] = field(default_factory=dict)
    _closing: ExitStack = field(default_factory=ExitStack)

    def check_out(self, ref: str, head: str | None) -> Version:
        """The version as a folder, until `close`. Raises CompareError for one that is not there."""
        if ref not in self._versions:
            self._versions[ref] = self._closing.enter_context(check_out(ref, self.project, self.project / CACHE, head))
        return self._versions[ref]

    def is_unchanged(self, commit: str) -> bool:
        """True where the project is as it was in the commit. Raises CompareError for one that is not there."""
        return hash_changes(self.project, commit, self.ignored) is None

    def close(self) -> None:
        self._closing.close()


def choose_ref(against: str, recorded: Provenance | None) -> str:
    """The git ref of the code to compare with. Raises CompareError where the record does not tell it."""
    if against != AUTO:
        return against
    if recorded is None or recorded.commit is None:
        raise CompareError("the record does not contain its commit: give --against REF, or record again in a git clone")
    if recorded.changes is not None:
        raise CompareError(
            f"the record is of {recorded.commit[:12]} with uncommitted changes: give --against REF, or record again"
        )
    return recorded.commit


def compare_code(
    versions: RecordedVersions,
    ref: str,
    case_id: str,
    node_id: str,
    options: Options,
    device: torch.device,
    print_line: Callable[[str], None],
) -> RecordedCode:
    """Measures the duet of one case with the version `ref`, in fresh processes while this one waits.

    Raises CompareError where the version cannot be checked out, driven or measured, and where no test of the head
    measures the case itself.
    """
    base = versions.check_out(ref, head=None if options.against == AUTO else "HEAD")
    head = Version(".", versions.project)
    words = [node_id, f"--rootdir={versions.project}", "--perf-device", str(device), "-q", "-p", "gpugate.plugin"]
    words += ["-p", "no:cacheprovider", "-o", f"perf_step_timeout={options.step_timeout_s}"]
    words += [f"--perf-set={name}={value}" for name, value in options.settings.items()]
    plan = DuetPlan(str(base.root), options.budget_s, case_ids=(case_id,), fault=options.fault, project=str(head.root))
    taken = measure_duets(plan, head, words, print_line=print_line)
    problems = [process.problems[case_id] for process in taken if case_id in process.problems]
    missing = f"{case_id} is not in {ref}" if any(case_id in process.added for process in taken) else None
    problem = missing or next(iter(problems), None)
    if problem is None and not any(case_id in process.measured for process in taken):
        raise CompareError(f"{node_id} measures a sweep alone: select a test of the case {case_id} itself, too")
    return RecordedCode(base.commit or ref, processes=tuple(taken), problem=problem)

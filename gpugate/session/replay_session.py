"""A perf session that measures nothing: every case is what a stored run has of it, decided again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpugate.errors import OptionError
from gpugate.machine.environment import Environment, Missing
from gpugate.measurement.progress import Report, silent
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from gpugate.session.options import Options
from gpugate.session.replay import decided_again
from gpugate.store import run_file
from gpugate.workload import Case


@dataclass
class ReplaySession:
    """`stored` is the whole run, decided again; `result` has the cases of it that this session's tests ask for."""

    options: Options
    path: Path
    stored: RunResult
    result: RunResult = field(init=False)
    notes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.result = replace(
            self.stored, gate=self.options.gate, cases={}, interrupted=True, problems=[], exit_status=None
        )
        self.notes.add(
            f"nothing was measured: {self.path}, started {self.stored.started_at}, was decided again, "
            "by the promises and baselines that it was judged by"
        )

    @property
    def environment(self) -> Environment:
        return self.stored.environment

    @property
    def device_kinds(self) -> set[str]:
        """The kinds of device that its tests are about: that of the run and those of its cases."""
        return {self.environment.device_kind, *(case.device_kind for case in self.stored.cases.values())}

    def tell_what_is_gone(self, catalogue_ids: Collection[str]) -> None:
        """No test asks for a case that the catalogue no longer has: that is to be known."""
        gone = [case_id for case_id in self.stored.cases if case_id not in catalogue_ids]
        if gone:
            self.notes.add(f"no longer in the catalogue, so that no test judges it: {', '.join(gone)}")

    def measured(self, case: Case, report: Report = silent) -> CaseResult:
        """What the run has of the case, for a test: one that it does not have, or did not finish, is a skip."""
        known = self.stored.cases.get(case.id)
        if known is None:
            names = (case.id, case.workload.name, case.optimization.name, case.reference_name)
            known = CaseResult(*names, case.size, skipped=f"not in {self.path.name}")
        known = self.result.cases[case.id] = replace(known, held=())
        if not (known.measurement or known.skipped or known.error or known.verdicts):
            return replace(known, skipped=f"not finished in {self.path.name}, which was interrupted")
        return known

    def accepts_absence(self, case: Case) -> bool:
        """Whether a gate may skip the case: the run never had it, or `--allow-missing` covers what it lacked then."""
        known = self.stored.cases.get(case.id)
        if known is None:
            return True
        lacking = Missing(known.lacking, known.skipped or "")
        return bool(known.lacking) and lacking.allowed_by(self.options.allow_missing)

    def problems(self) -> Iterator[str]:
        """A sentence for a gate on a run that did not end, and for one of which nothing was asked for."""
        if self.stored.interrupted:
            yield f"{self.path} was interrupted: what it did not reach is no pass, measure again"
        elif not any(case.measurement or case.error for case in self.result.cases.values()):
            yield f"the gate judged nothing: select cases that were measured in {self.path}"

    def finish(self, interrupted: bool) -> None:
        """Writes what was decided, where `--perf-json` asks for it."""
        self.result.interrupted = interrupted or self.stored.interrupted
        for path in self.options.run_paths:
            run_file.write(path, self.result)


def prepare_replay(options: Options) -> ReplaySession | None:
    """The session of the run that `--perf-replay` names; None without the option.

    Raises RunFileError for a file that cannot be used, ReplayError for a case in it that cannot be decided, and
    OptionError for `--perf-device` of a kind that the run was not measured on.
    """
    path = options.replay_path
    if path is None:
        return None
    run = run_file.read_to_decide_again(path)
    kind = run.environment.device_kind
    if options.device.partition(":")[0] not in ("auto", kind):
        raise OptionError(f"--perf-device is {options.device!r}, but {path} was measured on {kind}: leave it out")
    return ReplaySession(options, path, decided_again(run, options.tolerance))

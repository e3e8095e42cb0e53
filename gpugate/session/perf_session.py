"""One perf session: its device, its records, and its run, which is written case by case."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpugate.errors import CompareError, GpugateError
from gpugate.machine.cores import find_usable_cores
from gpugate.machine.environment import Environment, Missing, missing_needs
from gpugate.measurement.record import Yardstick
from gpugate.measurement.settings import HALF_WIDTH, Settings
from gpugate.results.case import CaseResult
from gpugate.results.run import RunResult
from gpugate.results.series import rung_number
from gpugate.session.options import Options
from gpugate.session.records import Records
from gpugate.session.remembered_proofs import RememberedProofs
from gpugate.session.selection import plan_case
from gpugate.session.time_plan import DoubtTime
from gpugate.store import run_file
from gpugate.store.provenance import list_code
from gpugate.store.version import CACHE_FOLDER, Version
from gpugate.store.writable_folder import choose_folder, make_ignored
from gpugate.workload import BASELINE, Case, Context

if TYPE_CHECKING:
    import torch

    from gpugate.measurement.run import WorkloadCache

NO_GPU = Missing(("cuda",), "needs a CUDA GPU, and torch sees none: run it on a machine with one")


@dataclass
class PerfSession:
    """State of one session on one device."""

    options: Options
    device: torch.device
    root: Path
    result: RunResult
    node_ids: Mapping[str, str] = field(default_factory=dict)  # one test of each case: enough to measure it again
    measuring: Case | None = None  # at this moment
    unusable: str | None = None  # why this process measures no further case
    notes: set[str] = field(default_factory=set)  # what a reader of the verdicts must know about the baselines
    # Takes profiles of a case's sides instead of measuring them, and says for the skip why nothing is judged.
    capture: Callable[[Case, Context], str] | None = None
    cache: WorkloadCache | None = None  # of the workload that was measured last
    cores: frozenset[int] = field(default_factory=find_usable_cores)  # of this process, at its start
    saved_probes: int = 0  # of the yardsticks, how many the JSON file has
    started_s: float = field(default_factory=time.perf_counter)
    worktrees: dict[str, Version] = field(default_factory=dict)  # of other versions, by git ref
    closing: ExitStack = field(default_factory=ExitStack)  # removes the worktrees at the end
    shared_s: float | None = None  # of sampling a case, on a CPU without a given budget
    records: Records = field(init=False)
    doubt: DoubtTime = field(init=False)
    proofs: RememberedProofs = field(init=False)

    def __post_init__(self) -> None:
        self.records = Records(self.options, self.device, self.result, self.notes)
        self.proofs = RememberedProofs(self.options.proofs_path, self.result, self.options.proof_days)
        self.doubt = DoubtTime(cases=max(1, len(self.node_ids)))

    @property
    def environment(self) -> Environment:
        return self.result.environment

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started_s

    def missing(self, case: Case) -> Missing | None:
        """Finds the needs that this machine lacks, or None."""
        if case.device_kind != self.device.type:
            return NO_GPU
        missing = missing_needs(case.optimization.needs, self.environment)
        if missing is None and case.reference_name != BASELINE:
            missing = missing_needs(case.workload.optimization(case.reference_name).needs, self.environment)
        return missing

    def can_measure(self, case: Case) -> bool:
        """True for a case that lacks nothing; a need that cannot be checked is an error of its case."""
        try:
            return self.missing(case) is None
        except GpugateError:
            return False

    def accepts_absence(self, case: Case) -> bool:
        """True where `--allow-missing` covers what the case lacks."""
        missing = self.missing(case)
        # A sweep point that ran out of memory is a valid result, unless a record shows that it used to fit.
        if missing is None:
            return case.id in self.result.cases and self.result.cases[case.id].remembered is None
        return missing.allowed_by(self.options.allow_missing)

    def needs_host(self, case: Case) -> bool:
        """True in a worker for a case beside which no other one may run on the host."""
        worker = self.options.worker
        cores = 0 if worker is None else worker.fewest_cores
        return plan_case(case, self.records.find_current(case), cores).needs_host

    def case_result(self, case: Case) -> CaseResult:
        """The result of this case; a new one holds no measurement yet."""
        if case.id not in self.result.cases:
            self.result.cases[case.id] = CaseResult(
                case_id=case.id,
                workload=case.workload.name,
                optimization=case.optimization.name,
                compared_with=case.reference_name,
                size=case.size,
                rung=rung_number(case.workload, case.optimization.name),
                point=case.optimization.point,
                why=case.optimization.why,
            )
        return self.result.cases[case.id]

    def plan_settings(self) -> Settings:
        """The settings of the present case."""
        options = self.options
        return Settings(
            budget_s=options.budget_s if self.shared_s is None else self.shared_s,
            half_width=HALF_WIDTH[self.device.type],
            seed=self.result.seed,
            fault=options.fault,
            prove=not options.fresh,
        )

    def context(self, case: Case) -> Context:
        """The context that the build functions of the case receive."""
        cache_dir = choose_folder(self.root / CACHE_FOLDER)
        make_ignored(cache_dir)
        return Context(
            device=self.device,
            items=case.size.items,
            seed=case.workload.seed,
            cache_dir=cache_dir,
            settings=self.options.settings,
        )

    def probe(self, taken: Literal["before", "between"]) -> None:
        """Measures the machine itself, and adds what it found to the run."""
        from gpugate.measurement.yardsticks import probe

        self.result.yardsticks.append(probe(self.device, taken))

    def begin(self) -> None:
        """Writes the JSON file with no further case, in place of an older run: a session that is killed leaves it."""
        for path in self.options.case_paths:
            run_file.write(path, self.result)

    def save_case(self, result: CaseResult) -> None:
        """Appends a finished case to the JSON file, with the probes since the case before."""
        self.result.wall_s = self.elapsed_s
        probes, self.saved_probes = self.result.yardsticks[self.saved_probes :], len(self.result.yardsticks)
        for path in self.options.case_paths:
            run_file.append(path, result, probes, self.result)

    def finish(self, interrupted: bool) -> None:
        """Marks the last probe as the one after everything, adds the files of the code and writes the file at last."""
        self.result.interrupted = interrupted
        with suppress(CompareError, OSError):
            if self.result.provenance is not None and self.result.provenance.commit is not None:
                code = list_code(self.root, self.options.result_paths)  # only now are all modules imported
                self.result.provenance = replace(self.result.provenance, files=tuple(sorted(code)))
        if self.result.yardsticks:
            last = self.result.yardsticks.pop()
            self.result.yardsticks.append(Yardstick(last.values, "after"))
        self.result.wall_s = self.elapsed_s
        for path in self.options.run_paths:
            run_file.write(path, self.result)

"""One perf session, from its opening on: its device, its records, and its run, which is written case by case."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.catalogue import Catalogue
from gpugate.errors import CompareError, GpugateError, OptionError
from gpugate.machine.cores import find_usable_cores
from gpugate.machine.environment import Environment, Missing, describe, list_needed, missing_needs
from gpugate.measurement.settings import HALF_WIDTH, Settings
from gpugate.report.next_step import describe_threads
from gpugate.results.case import CaseResult
from gpugate.results.duet import RecordedCode
from gpugate.results.run import Mode, RunResult
from gpugate.results.series import rung_number
from gpugate.session.options import AUTO, DEFAULT_PROCESSES, OFF, Options
from gpugate.session.records import Records
from gpugate.session.remembered_proofs import RememberedProofs
from gpugate.session.selection import case_needs_host
from gpugate.session.time_plan import LAST_START_S, LEAST_GATED_S, DoubtTime, share_time
from gpugate.store import baseline, run_file
from gpugate.store.provenance import list_code, read_provenance
from gpugate.store.version import CACHE_FOLDER, Version, find_commit
from gpugate.store.writable_folder import choose_folder, make_ignored
from gpugate.units import format_now
from gpugate.workload import BASELINE, Case, Context

if TYPE_CHECKING:
    import torch

    from gpugate.measurement.run import WorkloadCache
    from gpugate.session.workers import Worker

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
    print_line: Callable[[str], None] = lambda line: None  # on the terminal, at once
    said_slow: bool = False  # that this host launches kernels far slower than recorded
    # Takes profiles of a case's sides instead of measuring them, and says for the skip why nothing is judged.
    capture: Callable[[Case, Context], str] | None = None
    cache: WorkloadCache | None = None  # of the workload that was measured last
    cores: frozenset[int] = field(default_factory=find_usable_cores)  # of this process, at its start
    saved_probes: int = 0  # of the yardsticks, how many the JSON file has
    started_s: float = field(default_factory=time.perf_counter)
    worktrees: dict[str, Version] = field(default_factory=dict)  # of other versions, by git ref
    duets: dict[str, RecordedCode] = field(default_factory=dict)  # by case, also of later cases
    closing: ExitStack = field(default_factory=ExitStack)  # removes the worktrees at the end
    shared_s: float | None = None  # of sampling a case, on a CPU without a given budget
    records: Records = field(init=False)
    doubt: DoubtTime = field(init=False)
    proofs: RememberedProofs = field(init=False)

    def __post_init__(self) -> None:
        self.records = Records(self.options, self.device, self.result, self.notes)
        self.proofs = RememberedProofs(self.options.proofs_path, self.result)
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
        """True for a case that lacks nothing, and for one whose need cannot be checked: measuring it is an error."""
        try:
            return self.missing(case) is None
        except GpugateError:
            return True

    def accepts_absence(self, case: Case) -> bool:
        """True where `--allow-missing` covers what the case lacks."""
        missing = self.missing(case)
        return missing is not None and missing.allowed_by(self.options.allow_missing)

    def needs_host(self, case: Case) -> bool:
        """True in a worker for a case beside which no other one may run on the host."""
        worker = self.options.worker
        cores = 0 if worker is None else worker.fewest_cores
        return case_needs_host(case, self.records.find_record(case), cores)

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
            budget_s=self.shared_s or options.budget_s or Settings.budget_s,
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

    def probe(self) -> None:
        """Measures the machine itself, and adds what it found to the run."""
        from gpugate.measurement.yardsticks import probe

        self.result.yardsticks.append(probe(self.device))

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
        """Adds what only the end of the session shows: its time, and the files of all imported code."""
        self.result.interrupted = interrupted
        with suppress(CompareError, OSError):
            if self.result.provenance is not None and self.result.provenance.commit is not None:
                code = list_code(self.root, self.options.result_paths)
                self.result.provenance = replace(self.result.provenance, files=tuple(sorted(code)))
        self.result.wall_s = self.elapsed_s


def choose_device(asked: str, worker: Worker | None = None) -> torch.device:
    """The device to measure on: the one that the user names, else CUDA where there is a GPU, else the CPU.

    Raises OptionError for a GPU that is not there, also for that of a worker.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if worker is not None and worker.gpus and count == 0:
        gpus = ", ".join(worker.gpus)
        raise OptionError(f"torch does not see one of the GPUs {gpus}: leave it out of CUDA_VISIBLE_DEVICES")
    if asked == "cpu" or (asked == "auto" and count == 0):
        return torch.device("cpu")
    index = asked.partition(":")[2]
    number = int(index) if index else 0
    if number >= count:
        there = f"torch sees {count} GPU(s)" if count else "torch sees no GPU"
        raise OptionError(f"there is no device {asked!r}, {there}: use auto, cpu or an index that is there")
    # Events, graphs and the profiler go to the current device, whatever the tensors' device is.
    torch.cuda.set_device(number)  # cuda only
    return torch.device("cuda", number)  # cuda only


def _keep_compiling_quiet() -> None:
    """Detaches pytest from the logger `torch.__trace`: pytest attaches to loggers that do not propagate, and torch then
    logs every compilation there. Failed tests showed hundreds of empty lines."""
    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    if "TORCH_TRACE" not in os.environ:
        trace.handlers.clear()


def _check_settings(given: Mapping[str, str], selected: Collection[Case]) -> None:
    """Raises OptionError for a name of `--perf-set` that no workload of the selected cases declares."""
    known = {name: meaning for case in selected for name, meaning in case.workload.settings.items()}
    for name in sorted(given.keys() - known):
        use = "; ".join(f"{name}, {meaning}" for name, meaning in sorted(known.items()))
        advice = f"they know {use}" if known else "they know none: leave it out"
        raise OptionError(f"--perf-set {name}={given[name]} is for none of the selected workloads: {advice}")


def _check_accepted(accepted: Collection[str], catalogue: Catalogue) -> None:
    """Raises OptionError for a name of `--allow-missing` that no case needs."""
    known = {*NO_GPU.names, *list_needed(case.optimization.needs for case in catalogue.cases())}
    unknown = sorted(set(accepted) - known)
    if unknown:
        raise OptionError(
            f"--allow-missing {unknown[0]} is nothing that a case needs: they need {', '.join(sorted(known))}"
        )


def open_session(options: Options, root: Path, catalogue: Catalogue, node_ids: Mapping[str, str]) -> PerfSession:
    """Describes the device and reads its baselines.

    Raises OptionError for a device that is not there, for a name in `--perf-set` that no selected workload knows and
    for one in `--allow-missing` that no case needs, CompareError for an `--against` that is not there, and
    BaselineError for a file that cannot be trusted.
    """
    import torch

    selected = [case for case in catalogue.cases() if case.id in node_ids]
    if not options.fresh:  # a fresh process has all settings of its parent, and only some of its cases
        _check_settings(options.settings, selected)
        _check_accepted(options.allow_missing, catalogue)
        if options.against not in (AUTO, OFF):
            find_commit(options.against, root)
    worker = options.worker
    device = choose_device(options.device, worker)
    gpu_uuid = memory_bytes = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)  # cuda only
        gpu_uuid, memory_bytes = str(properties.uuid), int(properties.total_memory)  # cuda only
    _keep_compiling_quiet()
    now = format_now()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    # Interrupted until `finish` changes it: a killed process leaves a file that is marked as interrupted.
    result = RunResult(
        environment=describe(device, [case.optimization.needs for case in catalogue.cases()]),
        started_at=now if worker is None else worker.started_at,
        seed=seed if worker is None else worker.seed,
        command=describe_threads(device.type) + options.command,
        gate=options.gate,
        accepted=tuple(sorted(options.allow_missing)) if options.gate else None,
        recording=options.update_baselines,
        mutated=str(options.fault) if options.fault else None,
        interrupted=True,
        provenance=read_provenance(root, options.result_paths, gpu_uuid),
        memory_bytes=memory_bytes,
        shard=options.shard,
    )
    session = PerfSession(options, device, root, result, node_ids)
    files: dict[str, baseline.BaselineFile] = {}
    if not (options.own_inputs or options.fresh):
        recorded = baseline.load_all(session.records.folder)
        known = {workload.name for workload in catalogue.workloads()}
        files = {name: file for name, file in recorded.items() if name in known}
        whole = files if recorded.keys() <= known or catalogue.is_partial(root) else recorded
        session.records.recorded = [f"{name}/{key}" for name, file in whole.items() for key in file.cases]
    session.records.files = {} if options.update_baselines else files
    session.proofs.compute_keys(selected)
    session.doubt.cases = sum(map(session.can_measure, selected))
    if device.type == "cpu" and options.budget_s is None:
        looks = result.mode is Mode.DEVELOPER  # a gate measures a case for as long as a process of a recording does
        processes = 1 if looks else options.processes or DEFAULT_PROCESSES
        shared_s = share_time(session.doubt.cases * processes)
        session.shared_s = shared_s if looks else max(LEAST_GATED_S, shared_s)
        if looks and options.fault is None and options.profiling is None:  # a fault is to be caught in every case
            session.doubt.end_s = LAST_START_S
    return session

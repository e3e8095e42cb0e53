"""One perf session: the device, its records, and every case measured once and judged."""

from __future__ import annotations

import gc
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpugate.errors import (
    SPANS_GPUS,
    CatalogueError,
    CompareError,
    FreshProcessError,
    GpugateError,
    OptionError,
    SideError,
    SpoiledProcessError,
    skip_reason,
    temporary_folder_problem,
)
from gpugate.explaining.autopsy import explain
from gpugate.judging.actions import Action, Allowed, next_action
from gpugate.judging.evidence import Evidence, gather
from gpugate.judging.machine_state import environment_problem, launch_slowdown
from gpugate.judging.plausibility import impossible_rate
from gpugate.judging.rules import decide_by
from gpugate.machine.cores import find_usable_cores
from gpugate.machine.environment import Environment, Missing, missing_needs
from gpugate.machine.processes import list_children
from gpugate.measurement.derived import with_bus_share, with_ceiling_shares, with_ceilings, with_whole_run
from gpugate.measurement.progress import Progress, Report, silent
from gpugate.measurement.record import Measurement, ProofResult, Yardstick
from gpugate.measurement.settings import Settings
from gpugate.results.autopsy import Autopsy
from gpugate.results.case import CaseResult, Confirmation, Promise, Remembered, describe_other_reference
from gpugate.results.duet import RecordedCode
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Provenance, RunResult
from gpugate.results.series import rung_number
from gpugate.results.summary import summarize
from gpugate.results.verdict import CASE_CHECKS, Outcome, Verdict
from gpugate.session.fresh_process import run_fresh
from gpugate.session.left_over import await_new_children
from gpugate.session.options import AUTO, OFF, Options
from gpugate.session.recorded_code import RecordedVersions, choose_ref, compare_code
from gpugate.session.records import SOURCE_CHANGED, Records
from gpugate.session.remembered_proofs import ProofFileError, RememberedProofs
from gpugate.session.shards import plan_case
from gpugate.session.time_plan import DoubtTime, TimePlan
from gpugate.store import run_file
from gpugate.store.codec import from_json, to_json
from gpugate.store.provenance import is_unchanged, list_code
from gpugate.store.version import CACHE_FOLDER
from gpugate.store.writable_folder import choose_folder, make_ignored
from gpugate.workload import BASELINE, Case, Context, for_device_class

if TYPE_CHECKING:
    import torch

    from gpugate.measurement.ranks import RankJob
    from gpugate.measurement.workload_cache import WorkloadCache

_LOG = logging.getLogger(__name__)
LONGEST_COMMAND = 80  # characters
FRESH_PROCESS_S = 900.0  # within which one case is measured, its compilation or engine included; a hung one is killed
NEEDS_NOT_SKIPS = "a gate and a recording accept no skip: declare what it needs with Needs, for --allow-missing"
RANKS_ON_CPU_BUDGET_S = 1.0  # of a case whose ranks share the cores of one CPU: its times are not judged
SPOILED = "its reference, and perhaps each later side of this process: run the other cases without it"
NO_GPU = Missing(("cuda",), "needs a CUDA GPU, and torch sees none: run it on a machine with one")


@dataclass
class PerfSession:
    """State of one session on one device."""

    options: Options
    device: torch.device
    root: Path
    result: RunResult
    node_ids: Mapping[str, str] = field(default_factory=dict)  # one test of each case: enough to measure it again
    ambiguous: Mapping[str, str] = field(default_factory=dict)  # names of several workloads, each with a sentence
    measuring: Case | None = None  # at this moment
    lost: str | None = None  # why the device cannot be measured on any more
    notes: set[str] = field(default_factory=set)  # what a reader of the verdicts must know about the baselines
    # Takes profiles of a case's sides instead of measuring them, and says for the skip why nothing is judged.
    capture: Callable[[Case, Context], str] | None = None
    cache: WorkloadCache | None = None  # of the workload that was measured last
    cores: frozenset[int] = field(default_factory=find_usable_cores)  # of this process, at its start
    spoiled: str | None = None  # why this process measures no further case: a side slowed the code that sides share
    saved_probes: int = 0  # of the yardsticks, how many the JSON file has
    finished: dict[str, CaseResult] = field(default_factory=dict)  # of the run that is resumed
    resumed_probes: int = 0  # of the yardsticks, how many are of that run
    started_s: float = field(default_factory=time.perf_counter)
    plan: TimePlan | None = None  # of a developer's run on a CPU without a given budget
    records: Records = field(init=False)
    doubt: DoubtTime = field(init=False)
    versions: RecordedVersions = field(init=False)
    proofs: RememberedProofs = field(init=False)

    def __post_init__(self) -> None:
        self.records = Records(self.options, self.device, self.result, self.notes)
        self.proofs = RememberedProofs(self.options.proofs_path, self.result)
        self.versions = RecordedVersions(self.root)
        self.doubt = DoubtTime(cases=len(self.node_ids))

    @property
    def environment(self) -> Environment:
        return self.result.environment

    def missing(self, case: Case) -> Missing | None:
        """Finds the needs that this machine lacks, or None. Raises CatalogueError where two cases have this id."""
        if case.workload.name in self.ambiguous:
            raise CatalogueError(self.ambiguous[case.workload.name])
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

    def case_result(self, case: Case) -> CaseResult:
        """The result of this case; a new one holds no measurement yet."""
        if case.id not in self.result.cases:
            self.result.cases[case.id] = self.finished.get(case.id) or CaseResult(
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

    def measure(self, case: Case, report: Report = silent) -> CaseResult:
        """Measures and judges the case, once per session; a failure becomes its error or its skip."""
        result = self.case_result(case)
        if not (result.measurement or result.error or result.skipped or result.verdicts):
            try:
                missing = self.missing(case)
            except GpugateError as error:
                self._note_failure(case, result, error)
            else:
                if missing is not None:
                    result.skipped, result.lacking = missing.reason, missing.names
                else:
                    self.measuring = case
                    with self._hold_host(case), self._naming_left_over(case):
                        began_s = self._elapsed_s
                        self._measure(case, result, report)
                    if self.plan is not None:
                        self.plan.end_case(self._elapsed_s - began_s)
            self.measuring = None
            self.save_case(result)
        return result

    def needs_host(self, case: Case) -> bool:
        """True in a worker for a case beside which no other one may run on the host."""
        worker = self.options.worker
        cores = 0 if worker is None else worker.fewest_cores
        return plan_case(case, self.records.find_current(case), cores).needs_host

    @contextmanager
    def _hold_host(self, case: Case) -> Iterator[None]:
        if self.options.worker is None:
            yield
            return
        with self.options.worker.hold_host(self.needs_host(case)):
            self.cores = find_usable_cores()
            yield

    @contextmanager
    def _naming_left_over(self, case: Case) -> Iterator[None]:
        before = list_children()
        try:
            yield
        finally:
            self.notes.update(
                f"{case.id}: process {pid} ({command[:LONGEST_COMMAND]}) outlived close(): end it there; this run ends "
                "it at its end"
                for pid, command in await_new_children(before).items()
            )

    def _measure(self, case: Case, result: CaseResult, report: Report) -> None:
        if self.lost or self.spoiled:
            _note_no_times(result, self.lost or self.spoiled or "")
            return
        self.records.hash_source(case)
        classes = self.environment.device_classes
        result.promise = Promise(
            min_speedup=for_device_class(case.optimization.min_speedup, classes),
            tolerance=case.optimization.tolerated,
            contract=for_device_class(case.optimization.contract, classes),
        )
        result.remembered = self.records.find(case)
        if result.remembered is None:
            result.cores_changed = self.records.find_changed_cores(case)
        collect_garbage()
        try:
            if self.capture is not None:
                result.skipped = SPANS_GPUS if case.spans_gpus else self.capture(case, self.context(case))
                return
            if len(self.result.yardsticks) == self.resumed_probes:
                self._probe("before")
            self._measure_until_decided(case, result, report)
        except KeyboardInterrupt:
            _drop_measurement(result)  # it may lack its confirmations, and --perf-resume measures no finished case
            raise
        except BaseException as error:
            from gpugate.measurement.yardsticks import device_problem

            _LOG.debug("measuring %s failed", case.id, exc_info=True)
            self._note_failure(case, result, error)
            self.lost = device_problem(self.device)
            if isinstance(error, SpoiledProcessError):
                self.spoiled = f"{case.id} changed {SPOILED}"
            if self.lost is None:
                _drop_measurement(result)
        if self.lost is not None:
            _note_no_times(result, self.lost)
        elif result.error is not None or result.skipped is not None:
            self._release()  # once more: while the error was on its way it kept what the failed side held

    def end_hung(self, error: SideError) -> str:
        """Writes the run with the error of the case that hangs in C code; returns the sentence about it.

        It runs in another thread, when the main one will not come back.
        """
        sentence = str(error)
        if self.measuring is not None:
            result, sentence = self.case_result(self.measuring), f"{self.measuring.id}: {_error_sentence(error)}"
            result.error = _error_sentence(error)
            _drop_measurement(result)
            if self.options.worker is not None:  # the controller writes the run
                self.save_case(result)
        self.finish(interrupted=True)
        paths = " and ".join(str(path) for path in self.options.run_paths)
        kept = f"; what was measured is in {paths}" if paths else ""
        return f"{sentence}; it hangs in code that is not Python, so the run ends here{kept}"

    def _note_failure(self, case: Case, result: CaseResult, error: BaseException) -> None:
        """Makes a failure the skip of the case where a developer's run may skip it, else the error of the case."""
        reason = skip_reason(error)
        if case.optimization.point is not None and isinstance(error, SideError) and error.out_of_memory:
            result.skipped, result.lacking = "out of memory", ("memory",)
        elif reason is None:
            result.error = _error_sentence(error)
        elif self.options.gate or self.options.update_baselines:
            result.error = f"{_error_sentence(error)}; {NEEDS_NOT_SKIPS}"
        else:
            skipped = f"{error.side} was skipped while {error.doing}" if isinstance(error, SideError) else "skipped"
            result.skipped = f"{skipped}: {reason}"

    def _measure_until_decided(self, case: Case, result: CaseResult, report: Report) -> None:
        """Measures the case, and measures on as `next_action` decides, while there is time for doubt."""
        self.doubt.begin_case(self.records.has_changed(case))
        settings = self._plan_settings()
        longer = settings.escalate()
        if case.spans_gpus and case.device_kind == "cpu" and not self.options.update_baselines:
            settings = replace(settings, budget_s=min(settings.budget_s, RANKS_ON_CPU_BUDGET_S))
        result.measurement = self._measure_here(case, settings, report)
        self._forget_other_reference(result)
        self._check_machine(result)
        evidence, allowed = self._judge(result), self._allow(case, result.measurement, longer)
        while (action := next_action(evidence, allowed)) is not Action.STOP:
            if action is Action.PAIRS:
                more = self._measure_here(case, longer, report)
                result.measurement = _as_stored(result.measurement.with_more(more), case)
                self._check_machine(result)
            elif action is Action.PROCESS and not self.doubt.affords(result.measurement.wall_s, self._elapsed_s):
                result.attempts.append(Confirmation(None, self.doubt.leave_out(case.id)))
                evidence = self._judge(result)
                break
            elif action is Action.PROCESS:
                self._release()
                count = f"fresh process {len(result.attempts) + 2} of {allowed.processes}"
                report(Progress(case.id, "confirming", count))
                with self.doubt.spend():
                    result.attempts.append(self._confirm(case))
            else:
                self._compare_code(case, result, report)
            evidence = self._judge(result)
        slowed = bool(evidence.no_result) and evidence.times_ceiling is None
        if slowed and (result.attempts or allowed.processes == 1):
            self.spoiled = f"{case.id} slowed {SPOILED}"
        if self.options.explain or any(verdict.needs_autopsy for verdict in result.verdicts):
            result.autopsy = self._explain(case, result)

    def _allow(self, case: Case, measured: Measurement, longer: Settings) -> Allowed:
        """The measurements of a case that the session allows, after its first one."""
        against = self.options.against
        return Allowed(
            pairs=self.plan is None or self.plan.affords(measured.wall_s + longer.budget_s, self._elapsed_s),
            processes=self.options.deciding_processes,
            duet=against != OFF,
            any_code=against not in (AUTO, OFF),
            changed=self.records.has_changed(case),
        )

    def _check_machine(self, result: CaseResult) -> None:
        """Probes the machine after a measurement in this process, and notes what makes its times no evidence."""
        measurement, remembered = result.measurement, result.remembered
        if measurement is None:
            return
        self._probe("between")
        result.environment_problem = self._environment_problem(measurement, remembered)
        if remembered is not None:
            result.launch_slowdown = launch_slowdown(self.result.yardsticks, remembered.yardsticks)

    def _forget_other_reference(self, result: CaseResult) -> None:
        """Drops a record whose reference is not today's one: the case is then one without a record."""
        if result.remembered is None or result.measurement is None:
            return
        then, now = result.remembered.reference_counters, result.measurement.reference_counters
        problem = describe_other_reference(then, now)
        if problem is not None:
            result.remembered = None
            self.notes.add(f"the record of {result.case_id} is of another reference: {problem}; record it again")

    def _plan_settings(self) -> Settings:
        options = self.options
        settings = Settings(
            budget_s=options.budget_s, seed=self.result.seed, fault=options.fault, prove=not options.fresh
        )
        return settings if self.plan is None else self.plan.plan(settings, self._elapsed_s)

    @property
    def _elapsed_s(self) -> float:
        return time.perf_counter() - self.started_s

    def _compare_code(self, case: Case, result: CaseResult, report: Report) -> None:
        """Compares the code of the case with that of its record, where both differ or an alarm is to be explained."""
        if case.spans_gpus:
            result.recorded_code = RecordedCode("", problem=SPANS_GPUS)
            return
        record = self.records.find_current(case) or self.records.find_other_cores(case)
        provenance = record.provenance if record else None
        changes = self._list_machine_changes(provenance, result)
        try:
            ref = choose_ref(self.options.against, provenance, self.root)
            if self.options.fault is None and is_unchanged(self.root, ref, self.options.result_paths):
                code = RecordedCode(ref, unchanged=True)
            elif not self.doubt.affords(result.duration_s / len(result.measurements), self._elapsed_s):
                code = RecordedCode("", problem=self.doubt.leave_out(case.id))
            else:
                self._release()

                def print_line(line: str) -> None:
                    report(Progress(case.id, "comparing", line))

                orders = self.versions, ref, case.id, self.node_ids[case.id], self.options, self.device, print_line
                left_s = self.doubt.find_left_s(self._elapsed_s)
                with self.doubt.spend():
                    code = compare_code(*orders, limit_s=left_s)
        except (CompareError, OSError) as error:
            code = RecordedCode("", problem=str(error))
            if self.doubt.find_left_s(self._elapsed_s) <= 0:  # cut off
                self.doubt.leave_out(case.id)
        result.recorded_code = replace(code, machine_changes=changes)

    def _list_machine_changes(self, recorded: Provenance | None, result: CaseResult) -> tuple[str, ...]:
        remembered, cores, now = result.remembered, result.cores_changed, self.result.provenance
        found = [text for text in (remembered.differences if remembered else ()) if text != SOURCE_CHANGED]
        found += [f"cores {cores.recorded} -> {cores.now}"] if cores is not None else []
        if recorded is not None and now is not None:
            found += ["another host"] if recorded.host != now.host else []
            found += ["another GPU of this kind"] if recorded.gpu_uuid != now.gpu_uuid else []
        return tuple(found)

    def _measure_here(self, case: Case, settings: Settings, report: Report) -> Measurement:
        from gpugate.measurement.run import measure
        from gpugate.measurement.workload_cache import WorkloadCache

        self.cache = self.cache or WorkloadCache()
        proved = self.proofs.recall(case) if settings.prove else ()
        settings = replace(settings, prove=settings.prove and not proved)
        with self._ranks(case) as ranks:
            found = measure(case, replace(self.context(case), ranks=ranks), settings, report, self.cache)
        found = replace(found, proofs=proved) if proved else found
        if settings.prove:
            self._keep_proofs(case, found.proofs)
        found = self._with_ceilings(found, case)
        if found.pairs and impossible_rate(found, summarize(found), case.size):
            self._probe("between")  # one bad probe makes no side too fast
            found = self._with_ceilings(found, case)
        return _as_stored(with_bus_share(found, self.result.yardsticks[-1].values), case)

    def _keep_proofs(self, case: Case, proofs: tuple[ProofResult, ...]) -> None:
        try:
            self.proofs.keep(case, proofs)
        except ProofFileError as error:  # what was measured must not be lost by it
            self.notes.add(f"warning: proofs are not remembered: {error}")

    @contextmanager
    def _ranks(self, case: Case) -> Iterator[RankJob | None]:
        """Starts the ranks of a case that spans GPUs, and ends them."""
        if not case.spans_gpus:
            yield None
            return
        from gpugate.measurement.ranks import RankJob, count_ranks

        with RankJob(count_ranks(self.device), self.device) as ranks:
            yield ranks

    def _with_ceilings(self, found: Measurement, case: Case) -> Measurement:
        from gpugate.measurement.cold_inputs import most_cached_bytes

        dtype, cache = case.optimization.dtype, most_cached_bytes(self.device)
        return with_ceilings(found, dtype, self.device.type, cache, self.result.yardsticks)

    def _confirm(self, case: Case) -> Confirmation:
        """Measures the case in a fresh process, while this one waits."""
        with tempfile.TemporaryDirectory(prefix="gpugate-attempt-") as folder:
            json_path = Path(folder) / "run.json"
            try:
                options = replace(self.options, budget_s=self._plan_settings().budget_s)
                node_ids, timeout_s = [self.node_ids[case.id]], FRESH_PROCESS_S + 10 * options.budget_s
                run = run_fresh(options, self.device, self.root, node_ids, json_path, timeout_s)
                found = run.cases[case.id]
            except FreshProcessError as error:
                return Confirmation(None, str(error))
            except (GpugateError, OSError, LookupError) as error:  # what this process measured must not be lost by it
                return Confirmation(None, f"a fresh process gave no result ({type(error).__name__}: {error})")
        return Confirmation(found.measurement, found.error or found.skipped or found.environment_problem)

    def _release(self) -> None:
        from gpugate.measurement.sides import release

        release(self.device)

    def context(self, case: Case) -> Context:
        """The context that the build functions of the case receive."""
        cache_dir = choose_folder(self.root / CACHE_FOLDER)
        try:
            make_ignored(cache_dir)
        except OSError as error:
            instead = "" if cache_dir.is_relative_to(self.root.resolve()) else f", and neither can {self.root}"
            raise OptionError(
                f"{cache_dir} cannot be written ({error.strerror}){instead}: make room, or set XDG_CACHE_HOME to a "
                "folder that can be written"
            ) from None
        return Context(
            device=self.device,
            items=case.size.items,
            seed=case.workload.seed,
            cache_dir=cache_dir,
            settings=self.options.settings,
        )

    def _probe(self, taken: Literal["before", "between"]) -> None:
        from gpugate.measurement.yardsticks import probe

        self.result.yardsticks.append(probe(self.device, taken))

    def _judge(self, result: CaseResult) -> Evidence:
        pairs = result.measurement is not None and result.measurement.pairs
        result.summary = result.summarize(result.measurement) if result.measurement and pairs else None
        evidence = gather(result, self.result.mode, None)
        result.verdicts = decide_by(evidence)
        return evidence

    def _environment_problem(self, measurement: Measurement, remembered: Remembered | None) -> str | None:
        cores = find_usable_cores()
        if cores != self.cores:  # by a side or from outside: nobody can tell
            return f"the cores of this process changed during the run, from {sorted(self.cores)} to {sorted(cores)}"
        expected = remembered.yardsticks if remembered and remembered.match == "exact" else self._best_yardsticks()
        problem = environment_problem(measurement, self.result.yardsticks[-2:], expected)
        if problem is None:
            return None
        self._probe("between")  # one bad probe is no sick machine
        return environment_problem(measurement, self.result.yardsticks[-1:], expected)

    def _best_yardsticks(self) -> dict[str, float]:
        names = {name for probe in self.result.yardsticks for name in probe.values}
        return {name: max(probe.values.get(name, 0.0) for probe in self.result.yardsticks) for name in names}

    def _explain(self, case: Case, result: CaseResult) -> Autopsy | None:
        """Makes the autopsy of a case. It decides no verdict, so that its failure is only a note."""
        try:
            return explain(result, self.records.find_profile(case))
        except Exception as error:
            _LOG.debug("explaining %s failed", case.id, exc_info=True)
            self.notes.add(f"{case.id} was not explained ({type(error).__name__}: {error})")
            return None

    def begin(self) -> None:
        """Writes the JSON file with no further case, in place of an older run: a session that is killed leaves it."""
        for path in self.options.case_paths:
            run_file.begin(path, replace(self.result, cases={**self.finished, **self.result.cases}))

    def save_case(self, result: CaseResult) -> None:
        """Appends a finished case to the JSON file, with the probes since the case before."""
        self.result.wall_s = self._elapsed_s
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
        self.result.wall_s = self._elapsed_s
        for path in self.options.run_paths:
            run_file.write(path, self.result)


def collect_garbage() -> None:
    """Collects what earlier cases left, and leaves what stays, imports above all, out of each collection of this case.

    Every build is followed by a collection: it took 70 ms for 100,000 objects that had been there before.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _as_stored(found: Measurement, case: Case) -> Measurement:
    """Rounds the measurement as the file does, so that `gpugate replay` decides the same numbers again."""
    return from_json(Measurement, to_json(with_ceiling_shares(with_whole_run(found, case.size), case.size)))


def _drop_measurement(result: CaseResult) -> None:
    """Removes the measurement of a case that was interrupted, or that failed."""
    result.measurement, result.summary, result.verdicts, result.attempts = None, None, [], []


def _note_no_times(result: CaseResult, problem: str) -> None:
    """Makes the case ENV_INVALID, since its device was lost, or the process was spoiled."""
    result.error, result.environment_problem = None, problem
    lost = (Reason(ReasonCode.MACHINE_UNFIT, {"problem": problem}),)
    result.verdicts = [Verdict(check, result.case_id, Outcome.ENV_INVALID, lost) for check in CASE_CHECKS]


def _error_sentence(error: BaseException) -> str:
    disk_problem = temporary_folder_problem(error)
    if disk_problem is not None:
        return disk_problem
    if isinstance(error, (CatalogueError, OptionError)):
        return str(error)
    known = error if isinstance(error, SideError) else SideError("the engine", "measuring it", error)
    if known.out_of_memory:
        return f"{known}; free device memory or lower the items per step, the other workloads go on"
    return str(known)

"""The baseline files: one per workload, `baselines/<machine>/<workload>.json`, and its life cycle.

`folder` is always the folder of one machine. Samples are kept and conclusions derived, see
`gpugate.results.summary.history`. Only `write` changes files; the lock of the folder must last from
`load_all` to the last `write`.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpugate import units
from gpugate.errors import BaselineError
from gpugate.machine.environment import Environment, differences, machine_name
from gpugate.measurement.record import Counters, Measurement, Process, StepProfile
from gpugate.results.bill import ProcessBills, bills_of, stored_bills
from gpugate.results.case import CaseResult, describe_other_reference
from gpugate.results.reason import ReasonCode
from gpugate.results.run import Provenance, RunResult
from gpugate.results.summary import (
    UNKNOWN_TOLERANCE,
    History,
    history,
    shrink_records,
    summarize_process,
)
from gpugate.results.verdict import Outcome
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.store.json_file import JsonFile
from gpugate.store.writable_folder import lock_folder
from gpugate.units import Positive, number_of, round_stored, stored_unless
from gpugate.workload import CaseKey, WorkloadName

# The formats before 8 were of versions that were never released.
FORMAT_VERSION = 8
USEFUL = 0.25  # a record that misses a larger slowdown gates nearly nothing by the wall time
_UNFIT = (Outcome.WRONG, Outcome.NOT_ENGAGED)


@dataclass(frozen=True)
class Record:
    """The measurements of one case by several fresh processes. A counter that is absent was not measured."""

    recorded_at: str  # ISO 8601 with the UTC offset: the start of the last process
    reason: str
    source_hash: str  # of the workload, see `source_hash`; empty where it is unknown
    environment: Environment
    processes: tuple[Process, ...]
    yardsticks: Mapping[str, Positive] = field(default_factory=dict)  # medians, by name
    reference_counters: Counters = field(default_factory=dict)  # the largest over the processes
    optimized_counters: Counters = field(default_factory=dict)
    started_at: tuple[str, ...] = ()  # each process, as `recorded_at`
    bills: ProcessBills = stored_bills()  # of each process, None where nothing was counted; empty: of no process
    provenance: Provenance | None = None  # of the newest process; None: an older gpugate recorded it

    def __post_init__(self) -> None:
        """Raises ValueError for what no recording makes."""
        count = len(self.processes)
        if not count or not all(any(build.pairs for build in process) for process in self.processes):
            raise ValueError("a process lacks samples")
        if {len(self.bills), len(self.started_at)} - {0, count}:
            raise ValueError("it has not one time and one bill for each process")
        try:
            sorted(map(datetime.datetime.fromisoformat, (self.recorded_at, *self.started_at)))
        except (ValueError, TypeError):  # no time, or some with an offset and some without
            raise ValueError("recorded_at or started_at is no ISO 8601 time") from None

    @property
    def history(self) -> History:
        return history(self.processes, self.bills)


@dataclass(frozen=True)
class Entry:
    """`profile` is that of the optimized side in the newest process of the record. An autopsy names its kernels, and
    nothing is judged by it."""

    record: Record
    profile: StepProfile | None = stored_unless(None)


@dataclass(frozen=True)
class BaselineFile:
    """The records of one workload on one machine, by `<optimization>/<kind of device>`, as in `cudnn-fused/cuda`."""

    workload: WorkloadName
    machine: str
    cases: Mapping[CaseKey, Entry]


FILE = JsonFile(
    "gpugate-baseline",
    FORMAT_VERSION,
    BaselineFile,
    BaselineError,
    step="restore it from version control, or delete it and record again with --update-baselines",
    unwritable="make room or mend its permissions",
    oldest_version=FORMAT_VERSION,
)


@dataclass(frozen=True)
class Recording:
    """The reason of a recording, and the records that it may replace."""

    reason: str
    adding: bool = False  # to the processes that are recorded, in place of replacing them
    force: bool = False  # a useless record may replace one that is twice as sharp


Recorded = tuple[list[BaselineFile], dict[str, str]]  # and the reason for each measured case without a new record


def lock(folder: Path) -> AbstractContextManager[None]:
    """Makes the folder and locks it until the block ends. Raises BaselineError where another process has the lock."""
    return lock_folder(folder, BaselineError, is_committed=True)


def load_all(folder: Path) -> dict[str, BaselineFile]:
    """Loads the files of one machine, by workload; none where the folder is absent. Raises BaselineError for a bad
    file."""
    return {name: _load(folder, name) for name in _workloads(folder)}


def _path(folder: Path, workload: str) -> Path:
    """Returns the path of a workload's file; a family, such as `video` of `video/decode`, is a folder."""
    return folder / f"{workload}.json"


def _workloads(folder: Path) -> list[str]:
    """Lists the names of the workloads that have a file."""
    paths = sorted((*folder.glob("*.json"), *folder.glob("*/*.json")))
    return [path.relative_to(folder).with_suffix("").as_posix() for path in paths]


def record_cases(
    files: Mapping[str, BaselineFile], runs: Sequence[RunResult], recording: Recording, min_processes: int
) -> Recorded:
    """Returns the `files`, by workload, that get new records of cases that `runs`, one per fresh process, measured.

    The records of other cases stay. A case gets none that failed, has no valid times, was judged WRONG or NOT_ENGAGED,
    was measured by fewer than `min_processes` runs, or whose workload's source differs between runs. Where runs are
    added to a record, the recorded processes count as runs, each run may be added once, and a case that is slower than
    recorded gets none, too. Otherwise a useless record does not replace one that is twice as sharp, unless forced.
    Raises BaselineError where no case gets a record, and when the runs differ in environment.
    """
    found = differences([run.environment for run in runs])
    if found:
        raise BaselineError(f"the runs' environments differ ({', '.join(found)}): record again on one machine")
    made, refused = dict[str, BaselineFile](), dict[str, str]()
    measured = {name: case.workload for run in runs for name, case in run.cases.items() if case.skipped is None}
    for case_id, workload in sorted(measured.items()):
        empty = BaselineFile(workload, machine_name(runs[0].environment), {})
        file, key = made.get(workload, files.get(workload, empty)), case_id.removeprefix(f"{workload}/")
        try:
            entry = _record_case(case_id, workload, runs, file.cases.get(key), recording, min_processes)
        except BaselineError as error:
            refused[case_id] = str(error)
        else:
            made[workload] = replace(file, cases=dict(sorted({**file.cases, key: entry}.items())))
    if not made:
        nothing = "every case was skipped, so no baseline was written: record where they can be measured"
        raise BaselineError("\n".join(dict.fromkeys(refused.values())) or nothing)
    return list(made.values()), refused


def _record_case(
    case_id: str, workload: str, runs: Sequence[RunResult], old: Entry | None, recording: Recording, min_processes: int
) -> Entry:
    onto = old if recording.adding else None
    results = [(run, run.cases[case_id]) for run in runs if case_id in run.cases]
    for _, result in results:
        _check_fit(result, recording)
    found = [(run, result.measurement) for run, result in results if result.measurement is not None]
    # Beside other processes that count, a gate does not count one whose reference the other side slowed.
    measured = [(run, one) for run, one in found if not one.has_slowed_reference]
    if len(measured) < max(1, min_processes - (len(onto.record.processes) if onto else 0)):
        needed = f"{len(measured)} of the {min_processes} processes that a baseline needs"
        again = f'{runs[-1].command} -k "{case_id}"'
        steps = f"measure it again by {again} --gate, or record it by {again} --update-baselines"
        raise BaselineError(f"{case_id} was measured by {needed}: {steps}")
    sources = [run.source_hashes.get(workload, "") for run, _ in measured]
    if len({*sources}) > 1:
        first = measured[sources.index(sources[-1])][0]
        steps = f"accept those from {first.started_at} on alone, or record again without editing"
        raise BaselineError(f"the source of {workload!r} changed between the runs: {steps}")
    record = _record(measured, recording, sources[-1])
    profile = next((one.optimized_profile for _, one in reversed(measured) if one.optimized_profile is not None), None)
    if onto is not None:
        _check_alike(case_id, onto.record, record)
        record = _join(onto.record, record)
        if profile is None or record.recorded_at == onto.record.recorded_at:
            profile = onto.profile  # the recorded processes are newer, or the only ones with a profile
    elif old is not None and old.record.source_hash == record.source_hash and not recording.force:
        _check_worth_replacing(case_id, old.record, record)
    return Entry(record, profile)


def write(folder: Path, file: BaselineFile) -> tuple[str, ...]:
    """Writes one file in one step, or deletes one without a case, and returns a line about each changed record.

    Raises BaselineError, and leaves the old file, where that file is damaged or cannot be replaced.
    """
    path = _path(folder, file.workload)
    old = _load(folder, file.workload).cases if path.exists() else {}
    with FILE.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not file.cases:
            path.unlink(missing_ok=True)
            return ()
    FILE.write(path, file)
    return tuple(
        line for key, entry in file.cases.items() for line in _describe_changes(file, key, old.get(key), entry)
    )


def drop_case(folder: Path, case_id: str) -> BaselineFile | None:
    """Returns the file of the case's workload without the record of the case; None where there is no such record.

    Raises BaselineError for a bad file.
    """
    workload, *names = case_id.rsplit("/", 2)
    key = "/".join(names)
    file = _load(folder, workload) if workload in _workloads(folder) else None
    if file is None or key not in file.cases:
        return None
    return replace(file, cases={name: entry for name, entry in file.cases.items() if name != key})


def list_machines(baselines: Path, workload: str) -> list[str]:
    """The names of the machines that have recorded a workload."""
    return [folder.name for folder in baselines.glob("*") if _path(folder, workload).exists()]


def histories_of(files: Mapping[str, BaselineFile]) -> dict[str, History]:
    """Returns the history of each record by case id; their variations are shrunk together."""
    entries = {f"{file.workload}/{key}": entry for file in files.values() for key, entry in file.cases.items()}
    shrunk = shrink_records([entry.record.history for entry in entries.values()])
    return dict(zip(entries, shrunk, strict=True))


def _load(folder: Path, workload: str) -> BaselineFile:
    """Loads one file. Raises BaselineError for a file that is damaged, newer, of another machine or workload."""
    path, machine = _path(folder, workload), folder.absolute().name
    file = FILE.read(path)
    if file.machine != machine:
        raise BaselineError(
            f"{path} is of the machine {file.machine!r}, not of {machine!r}: move it there or delete it"
        )
    if file.workload != workload:
        raise BaselineError(f"{path} is of the workload {file.workload!r}: give it that name again or delete it")
    return file


def _check_fit(result: CaseResult, recording: Recording) -> None:
    if result.error is not None:
        raise BaselineError(f"{result.case_id} failed ({result.error}): mend that and record again")
    if result.environment_problem is not None:
        raise BaselineError(
            f"{result.case_id} has no valid times ({result.environment_problem}): mend that and record again"
        )
    for verdict in result.verdicts:
        # A regression may be recorded as the new normal. Added to the record that it fell behind, it would widen the
        # tolerance.
        slower = verdict.outcome is Outcome.REGRESSED or verdict.code is ReasonCode.SLOWER_THAN_RECORD
        unfit = verdict.outcome in _UNFIT or (recording.adding and slower)
        slowed = verdict.code is ReasonCode.REFERENCE_SLOWED
        if unfit or slowed:
            word = f"{verdict.outcome.value} in the check of {verdict.check}"
            mend = "end the other work on this machine, or on a CPU set OMP_NUM_THREADS=1," if slowed else "mend that"
            raise BaselineError(f"{result.case_id} is {word} ({verdict.reason}): {mend} and record again")
    # After the verdicts: a side that is WRONG is not timed, and a larger budget would not change that.
    if result.measurement is not None and not result.measurement.pairs:
        raise BaselineError(f"{result.case_id} has no samples: give it a larger --perf-budget and record again")


def _record(of_case: Sequence[tuple[RunResult, Measurement]], recording: Recording, source: str) -> Record:
    runs, measured = zip(*of_case, strict=True)
    newest = max(runs, key=lambda run: run.started)
    packages = {name: version for run in runs for name, version in run.environment.packages.items()}
    return Record(
        recorded_at=newest.started_at,
        reason=recording.reason,
        source_hash=source,
        environment=replace(runs[0].environment, packages=packages),
        processes=tuple(measurement.instances for measurement in measured),
        bills=tuple(map(bills_of, measured)),
        yardsticks=_over_all(statistics.median, [probe.values for run in runs for probe in run.yardsticks]),
        reference_counters=_over_all(max, [measurement.reference_counters for measurement in measured]),
        optimized_counters=_over_all(max, [measurement.optimized_counters for measurement in measured]),
        started_at=tuple(run.started_at for run in runs),
        provenance=newest.provenance,
    )


def _check_alike(case_id: str, recorded: Record, added: Record) -> None:
    """Raises BaselineError where both cannot be one record, or have a process in common."""
    found = list(differences([recorded.environment, added.environment]))
    if recorded.source_hash != added.source_hash:
        found.append("the workload's source changed")
    if problem := describe_other_reference(recorded.reference_counters, added.reference_counters):
        found.append(f"another reference: {problem}")
    if found:
        changes = ", ".join(found)
        raise BaselineError(f"{case_id} was recorded under other conditions ({changes}): record it anew, without --add")
    for started_at, process in zip(added.started_at, added.processes, strict=True):
        if process in recorded.processes:
            raise BaselineError(f"the run of {started_at} is in the baseline of {case_id} already: take it away")


def _check_worth_replacing(case_id: str, old: Record, new: Record) -> None:
    """Raises BaselineError where `new` misses a slowdown of USEFUL, and one twice as large as `old` does."""
    before, after = _detectable(old), _detectable(new)
    if after > max(USEFUL, 2 * before):
        new_one = f"the new one of {units.percent(after)}" if math.isfinite(after) else "the new one detects none"
        varies = units.percent(new.history.speedup_cv or 0.0)
        raise BaselineError(
            f"the record of {case_id} stays: it detects a slowdown of {units.percent(before)}, and {new_one}, since "
            f"its {len(new.processes)} processes vary by {varies}: record again on a quieter machine, or give gpugate "
            "accept --force"
        )


def _detectable(record: Record) -> float:
    """Computes the smallest slowdown that a gate of this case alone detects, as a share of the time per step."""
    limits = record.history.wall_limits(checks_per_night=1)
    return UNKNOWN_TOLERANCE if limits is None else limits.detectable


def find_useless(files: Sequence[BaselineFile], recorded: Container[str]) -> list[str]:
    """The ids of the `recorded` cases whose new record misses a slowdown of USEFUL, though it has enough processes."""
    entries = {f"{file.workload}/{key}": entry.record for file in files for key, entry in file.cases.items()}
    return [
        case_id
        for case_id, record in entries.items()
        if case_id in recorded and len(record.processes) >= DECIDING_PROCESSES and _detectable(record) > USEFUL
    ]


def _join(recorded: Record, added: Record) -> Record:
    """Makes one record of the processes of both; every process has the same weight in the yardsticks."""
    both = (recorded, added)
    older, newest = sorted(both, key=lambda one: datetime.datetime.fromisoformat(one.recorded_at))
    readings = [one.yardsticks for one in both for _ in one.processes]
    return replace(
        newest,
        reason=added.reason or recorded.reason,
        environment=replace(newest.environment, packages={**older.environment.packages, **newest.environment.packages}),
        processes=(*recorded.processes, *added.processes),
        bills=tuple(bill for one in both for bill in (one.bills or (None,) * len(one.processes))),
        yardsticks=_over_all(statistics.median, readings),
        reference_counters=_over_all(max, [one.reference_counters for one in both]),
        optimized_counters=_over_all(max, [one.optimized_counters for one in both]),
        # One time for each process, or none: a record without times stays without.
        started_at=(*recorded.started_at, *added.started_at) if recorded.started_at else (),
    )


def _over_all(pick: Callable[[Sequence[float]], float], readings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Picks one value for each name from the readings that have it."""
    names = sorted({name for reading in readings for name in reading})
    return {name: round_stored(pick([reading[name] for reading in readings if name in reading])) for name in names}


def _describe_changes(file: BaselineFile, key: str, old: Entry | None, new: Entry) -> Iterator[str]:
    if old is None:
        yield f"{file.workload}/{key}: recorded {_describe(new.record)}"
    elif old.record != new.record:
        was = units.ratio(old.record.history.speedup)
        yield f"{file.workload}/{key}: {was} -> {_describe(new.record)}"


def _describe(record: Record) -> str:
    """Describes the processes: `2.09x, 2.08..2.10 over 5 processes, cv 0.4 %, detects 3.2 %`.

    The last percentage is the smallest slowdown that a gate of this case alone catches 95 times in 100.
    """
    found = record.history
    each = [summarize_process(process).speedup.median for process in record.processes]
    processes = number_of(len(each), "process", "processes")
    days = len({time[:10] for time in record.started_at})
    on_days = f" on {days} days" if days > 1 else ""
    spread = f"{units.interval(min(each), max(each))} over {processes}{on_days}"
    if len(each) < DECIDING_PROCESSES:
        return f"{units.ratio(found.speedup)}, {spread}: a gate needs {DECIDING_PROCESSES}"
    detectable = _detectable(record)
    detects = f"detects {units.percent(detectable)}" if math.isfinite(detectable) else "detects no slowdown"
    return f"{units.ratio(found.speedup)}, {spread}, cv {units.percent(found.speedup_cv or 0.0)}, {detects}"

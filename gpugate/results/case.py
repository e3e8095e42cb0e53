"""A case of one session: measured, skipped or failed, what it was judged by, and the verdict of each check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Literal

from gpugate.measurement.record import Counters, Measurement
from gpugate.results.autopsy import Autopsy
from gpugate.results.duet import RecordedCode
from gpugate.results.fleet_plan import needs_host
from gpugate.results.summary import History, Summary, summarize
from gpugate.results.verdict import SEVERITY, Check, Outcome, Verdict
from gpugate.units import Natural, Positive, Processes, stored_unless
from gpugate.workload import CaseId, Contract, Name, Point, Size, Tolerance, WorkloadName

# Times as many bytes from the host, which no change of one reference explains.
OTHER_BYTES_RATIO = 1.5


@dataclass(frozen=True)
class Promise:
    """The promise of an optimization for this class of device."""

    min_speedup: Positive | None
    tolerance: Tolerance  # of its outputs
    contract: Contract | None


@dataclass(frozen=True)
class Remembered:
    """The record of one case, and the differences between the recording machine and this one.

    A changed source of the workload is one of the `differences` and leaves `match` exact: it is what a gate is for.
    `optimized_counters` is the largest value of each counter over the recorded processes, and so is
    `reference_counters`.
    """

    current: History
    match: Literal["exact", "same device"]
    differences: tuple[str, ...] = ()
    optimized_counters: Counters = field(default_factory=dict)
    reference_counters: Counters = field(default_factory=dict, metadata={"exclude_if": lambda value: not value})
    yardsticks: Mapping[str, Positive] = field(default_factory=dict)
    checks: Processes = 1  # of time, that a night makes with the baselines of this machine: each may alarm by chance
    recorded_at: str = stored_unless("")  # empty in older runs
    reason: str = stored_unless("")  # why the record was made, as its author says
    anchor: InitVar[object] = None  # of older files


def describe_other_reference(recorded: Counters, now: Counters) -> str | None:
    """Returns the evidence that the reference changed since its record; None where there is none.

    The speedup over one reference says nothing about the speedup over another one, such as FP32 with and without TF32.
    Nor does its record: the wall time and the bill are compared beside the reference's own, and one that became slower
    by itself would acquit a slower side.
    """
    then, today = (counters.get("tensor_core_kernels") for counters in (recorded, now))
    if then is not None and today is not None and (then == 0) != (today == 0):
        return f"it ran {then:g} tensor-core kernels in a step then, and runs {today:g} now"
    then, today = (counters.get("host_to_device_bytes", 0.0) for counters in (recorded, now))
    if max(then, today) > OTHER_BYTES_RATIO * min(then, today) > 0:
        return f"it copied {then / 1e6:.3g} MB to the device in a step then, and copies {today / 1e6:.3g} MB now"
    return None


@dataclass(frozen=True)
class Confirmation:
    """A confirmation of a case by a fresh process; `problem` is the reason for which it does not count."""

    measurement: Measurement | None
    problem: str | None = None


@dataclass
class CaseResult:
    """One case of this session. Exactly one of `measurement`, `skipped` and `error` is set once it has been run.

    `promise` and `remembered` are what it was judged by: with them a stored run can be decided again.
    """

    case_id: CaseId
    workload: WorkloadName
    optimization: Name
    compared_with: Name
    size: Size
    measurement: Measurement | None = None
    summary: Summary | None = None
    skipped: str | None = None  # the reason, with the next step
    lacking: tuple[str, ...] = ()  # what `--allow-missing` must name for a gate to accept the skip
    error: str | None = None  # one sentence
    environment_problem: str | None = None  # of the machine, for which its times say nothing of the program
    verdicts: list[Verdict] = field(default_factory=list)
    attempts: list[Confirmation] = field(default_factory=list)  # further ones, in fresh processes
    promise: Promise | None = None
    remembered: Remembered | None = None  # None: this machine has no baseline of it
    cores_changed: InitVar[object] = None  # of older files
    launch_slowdown: Positive | None = stored_unless(None)  # the launch latency of this host over the recorded one
    rung: Natural | None = None  # of its workload's ladder, from 1
    point: Point | None = None  # of a sweep
    why: str = ""  # what bounds it, as its author says
    recorded_code: RecordedCode | None = None  # None: it was not compared with this run's
    autopsy: Autopsy | None = None  # of one that fails, or that was to be explained
    held: tuple[Check, ...] = ()  # the checks whose verdicts a gate's tests held

    def number(self, name: str) -> float | None:
        """The number of this name that a verdict of this case rests on; None where no verdict has one."""
        found = next((one.numbers[name] for one in self.verdicts if name in one.numbers), None)
        return found if isinstance(found, float) else None

    @property
    def worst(self) -> Outcome | None:
        """The most severe outcome; None where nothing was judged."""
        return min((verdict.outcome for verdict in self.verdicts), key=SEVERITY.index, default=None)

    def summarize(self, measurement: Measurement) -> Summary:
        """The summary of one process of this case. Raises ValueError for a measurement without pairs."""
        return summarize(measurement, self.remembered.current if self.remembered else None)

    @property
    def processes(self) -> tuple[Measurement, ...]:
        """The processes that count: this one, and those that confirm it."""
        found = [self.measurement, *(one.measurement for one in self.attempts if one.problem is None)]
        return tuple(one for one in found if one is not None) if self.measurement is not None else ()

    @property
    def timed(self) -> list[Measurement]:
        """The processes with times: those with a slowed reference only where every process has one; none where this
        process itself has none."""
        if self.measurement is None or not self.measurement.pairs:
            return []
        timed = [one for one in self.processes if one.pairs]
        return [one for one in timed if not one.has_slowed_reference] or timed

    @property
    def detectable_slowdown(self) -> float | None:
        """The smallest slowdown, a share, that the record catches 95 times in 100, by the wall time."""
        return self.number("detectable_by_time")

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurements of all processes of the case: of this one, its confirmations and its duets."""
        found = [self.measurement, *(one.measurement for one in self.attempts)]
        duets = self.recorded_code.processes if self.recorded_code is not None else ()
        found += [one.measured.get(self.case_id) for one in duets]
        return tuple(one for one in found if one is not None)

    @property
    def duration_s(self) -> float:
        """The time that all processes of the case measured, without their start; 0 for a case that is not measured."""
        return sum(one.wall_s for one in self.measurements)

    @property
    def needs_host(self) -> bool:
        """True where no other case may run on the host."""
        if self.measurement is None:
            return False
        sides = self.measurement.reference_counters, self.measurement.optimized_counters
        copies = (side.get("copy_fraction") for side in sides)
        return needs_host(self.device_kind == "cpu", self.measurement.timer == "host clock", copies)

    @property
    def gpus(self) -> int:
        """The number of GPUs that the case spans: the processes of its job, and 1 where it has no job."""
        return int(self.measurement.optimized_counters.get("ranks", 1)) if self.measurement is not None else 1

    @property
    def unfit(self) -> str | None:
        """The reason why its times say nothing of the program: a case that spans GPUs may be measured on a CPU."""
        shares_cores = self.device_kind == "cpu" and self.gpus > 1
        return "the ranks share the cores of one CPU" if shares_cores else self.environment_problem

    @property
    def device_kind(self) -> str:
        return self.case_id.rpartition("/")[2]


def summarize_decider(result: CaseResult) -> Summary | None:
    """The process whose speedup decided about the case; None without times."""
    return find_decider([result.summarize(one) for one in result.timed]) if result.timed else None


def find_decider(processes: Sequence[Summary]) -> Summary:
    """The process with the middle speedup, of an even number of them the lower middle one."""
    ordered = sorted(processes, key=lambda one: one.speedup.median)
    return ordered[(len(ordered) - 1) // 2]

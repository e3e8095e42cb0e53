"""A session on one device: its cases, its yardsticks, its code and how it ended; and as a night of the store."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from gpugate.machine.environment import Environment, Missing, machine_key
from gpugate.measurement.record import Yardstick
from gpugate.results.case import CaseResult, summarize_decider
from gpugate.results.fleet_plan import Shard
from gpugate.results.verdict import Outcome
from gpugate.statistics.intervals import Estimate
from gpugate.units import SHORT_COMMIT, Count, NotNegative, round_stored, stored_unless
from gpugate.workload import SET


class Mode(str, Enum):
    """The purpose of a session: a developer looks, a gate needs records and fails without them, a recording writes
    them."""

    DEVELOPER = "developer"
    GATE = "gate"
    RECORDING = "recording"


@dataclass(frozen=True)
class Provenance:
    """The code that was measured and the host that measured it. None: the value does not exist or is not known.

    `changes` is a hash of what was not committed, except for the baselines; None where everything was. `host` is a hash
    of the host's identity. `files` are those of the imported code, each after its hash in git, as in `d670460b4b4a
    kernels/rows.py`.
    """

    repository: str | None = None  # only older files have one
    commit: str | None = None
    changes: str | None = None
    branch: str | None = None
    ci_url: str | None = None  # only older files have one
    host: str | None = None
    gpu_uuid: str | None = None
    container: str | None = None  # digest of the image
    files: tuple[str, ...] | None = stored_unless(None)


@dataclass
class RunResult:
    """One session on one device. `interrupted` says that it ended before its last test."""

    environment: Environment
    started_at: str  # ISO 8601 with the UTC offset
    seed: int  # of everything that is drawn anew in every session: fresh inputs, who goes first
    gate: bool = False
    interrupted: bool = False
    cases: dict[str, CaseResult] = field(default_factory=dict)
    yardsticks: list[Yardstick] = field(default_factory=list)
    source_hashes: dict[str, str] = field(default_factory=dict)  # by workload
    wall_s: NotNegative = 0.0
    command: str = "pytest perf_tests"  # that selects the same tests with the same baselines and threads
    recording: bool = False
    mutated: str | None = None  # the fault that was put into every optimized side, on purpose
    problems: list[str] = field(default_factory=list)  # why it is red where no test failed
    exit_status: int | None = None  # pytest's; None: it has not ended
    provenance: Provenance | None = None  # None: an older run
    memory_bytes: Count | None = None  # of the GPU; None: a CPU, or an older run
    shard: Shard | None = None  # None: a whole night
    accepted: tuple[str, ...] | None = stored_unless(None)  # by --allow-missing; None: no gate, or an older run
    selection: str | None = stored_unless(None)  # as in ` -k video`, from the tests of `command`; None: in another way
    narrowed: InitVar[object] = None  # of older files

    @property
    def chosen_inputs(self) -> str:
        """The settings that replaced the inputs that ship, with which the command ends; empty without `--perf-set`."""
        return self.command.partition(SET)[2]

    @property
    def started(self) -> datetime.datetime:
        return datetime.datetime.fromisoformat(self.started_at)

    @property
    def mode(self) -> Mode:
        return Mode.RECORDING if self.recording else Mode.GATE if self.gate else Mode.DEVELOPER

    def refuses(self, case: CaseResult) -> bool:
        """True for a skip that this gate does not accept.

        A sweep's point that ran out of memory lacks nothing: it is a valid result, unless it is recorded that it fits.
        """
        if case.skipped is None or self.accepted is None:
            return False
        if case.lacking:
            return not Missing(case.lacking, case.skipped).allowed_by(self.accepted)
        return case.remembered is not None


# --- a night: a run without samples, as the store keeps it and a history compares it ----------------------------------

UNKNOWN = "unknown"
BILL_TIMES = ("kernel_ms", "cpu_ms")  # that histories and comparisons show
_COUNTERS = ("kernels", "kernel_launches", "graph_launches", "whole_run_speedup", "ranks", *BILL_TIMES)


class CaseNight(NamedTuple):
    """One case as one night measured it; times are medians per step.

    Each of the `metrics` is a value, and behind it the ends of its interval where it has one. The speedup and both
    times are always there.
    """

    outcome: Outcome | None  # the worst of its verdicts
    metrics: Mapping[str, tuple[float, ...]]

    @property
    def speedup(self) -> Estimate:
        return self.estimate("speedup")

    @property
    def per_step_ms(self) -> Estimate:
        return self.estimate("optimized_ms")

    def value(self, name: str) -> float | None:
        found = self.metrics.get(name)
        return None if found is None else found[0]

    def estimate(self, name: str) -> Estimate:
        """A metric with its interval; a metric without one is its own interval. Raises KeyError for an absent one."""
        found = self.metrics[name]
        return Estimate(found[0], min(found), max(found))


@dataclass(frozen=True)
class Night:
    """One run. `cases` has the cases that were measured on a machine that was well. `unfit` has the ids of the cases
    that were measured on one that was not: their times are no evidence."""

    name: str  # of its directory, else the time at which it started
    started: datetime.datetime  # with the UTC offset
    seed: int
    machine: str  # see `machine_key`
    environment: Environment
    source_hashes: Mapping[str, str]  # by workload
    provenance: Provenance
    interrupted: bool
    cases: Mapping[str, CaseNight]
    unfit: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """A hash by which a run is recognized, whether it comes from a session or from one of its files."""
        origin = (self.started.astimezone(datetime.timezone.utc).isoformat(), self.seed, self.machine)
        parts = (*origin, self.provenance.host, self.provenance.gpu_uuid)
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]

    @property
    def measured(self) -> tuple[str, ...]:
        """The cases with times, also those of a machine that was not well."""
        return (*self.cases, *self.unfit)

    @property
    def is_gate(self) -> bool:
        """True for a run of `--gate`; a developer's run and a recording are none."""
        return any(case.value("gate") for case in self.cases.values())

    @property
    def version(self) -> str:
        """The code that was measured: `1a2b3c4d5e6f`, with a `+` where changes were not committed, or `unknown`."""
        commit = self.provenance.commit
        return UNKNOWN if commit is None else f"{commit[:SHORT_COMMIT]}{'+' if self.provenance.changes else ''}"


def workload_of(case_id: str) -> str:
    """`video/decode` of `video/decode/nvdec/cuda`."""
    return case_id.rsplit("/", 2)[0]


def night_of(run: RunResult, name: str = "") -> Night:
    """The night of a run."""
    timed = [case for case in run.cases.values() if case.summary is not None]
    fit = [case for case in timed if case.environment_problem is None]
    return Night(
        name=name or run.started_at,
        started=run.started,
        seed=run.seed,
        machine=machine_key(run.environment, run.memory_bytes),
        environment=run.environment,
        source_hashes=run.source_hashes,
        provenance=run.provenance or Provenance(),
        interrupted=run.interrupted,
        cases={case.case_id: CaseNight(case.worst, dict(_metrics(case, run.gate))) for case in fit},
        unfit=tuple(case.case_id for case in timed if case.environment_problem is not None),
    )


def _metrics(case: CaseResult, gate: bool) -> Iterator[tuple[str, tuple[float, ...]]]:
    decided = summarize_decider(case)  # whose figures every report has
    if decided is None or case.measurement is None:
        return
    for name in ("speedup", "optimized_ms", "reference_ms"):
        found = getattr(decided, name)
        yield name, tuple(map(round_stored, (found.median, found.low, found.high)))
    cost, remembered = case.measurement.optimized_cost, case.remembered
    optional: dict[str, float | None] = {
        "recorded_speedup": remembered.current.speedup if remembered else None,
        "peak_bytes": cost.peak_bytes,
        "start_up_s": cost.build_s + cost.first_step_s,
        "duration_s": case.duration_s or None,
        "gate": 1.0 if gate else None,  # of a case that no gate judged: absent
        "needs_host": 1.0 if case.needs_host else None,  # no other case may run on the host
        **{name: case.measurement.optimized_counters.get(name) for name in _COUNTERS},
    }
    yield from ((name, (round_stored(float(value)),)) for name, value in optional.items() if value is not None)

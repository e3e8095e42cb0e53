"""What a session knows of its cases: measured, skipped or failed, and how each check was judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpugate.autopsy.autopsy import Autopsy
from gpugate.environment import Environment
from gpugate.judging import Remembered
from gpugate.measurement.record import Measurement, Yardstick
from gpugate.quantities import Natural, NotNegative, Positive, Share
from gpugate.series import Ladder, Sweep
from gpugate.summary import Summary
from gpugate.verdict import Check, Verdict
from gpugate.workload import Contract, Point, Size, Tolerance


@dataclass(frozen=True)
class Promise:
    """What an optimization promises on this class of device."""

    min_speedup: Positive | None
    tolerance: Tolerance  # of its outputs
    contract: Contract | None


@dataclass(frozen=True)
class Attempt:
    """What a fresh process said of a case that needed confirming; `problem` is why it does not count."""

    measurement: Measurement | None
    problem: str | None = None


@dataclass
class CaseResult:
    """One case of this session. Exactly one of `measurement`, `skipped` and `error` is set once it has been run.

    `promise` and `remembered` are what it was judged by: with them a stored run can be decided again.
    """

    case_id: str
    workload: str
    optimization: str
    compared_with: str
    size: Size
    measurement: Measurement | None = None
    summary: Summary | None = None
    skipped: str | None = None  # the reason, with the next step
    lacking: tuple[str, ...] = ()  # what `--allow-missing` must name for a gate to accept the skip
    error: str | None = None  # one sentence
    environment_problem: str | None = None  # why its times say nothing of the program
    verdicts: list[Verdict] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)  # further ones, in fresh processes
    promise: Promise | None = None
    remembered: Remembered | None = None  # None: this machine has no baseline of it
    rung: Natural | None = None  # of its workload's ladder, from 1
    point: Point | None = None  # of a sweep
    why: str = ""  # what bounds it, as its author says
    autopsy: Autopsy | None = None  # of one that fails, or that was to be explained
    held: tuple[Check, ...] = ()  # the checks whose verdicts a gate's tests held

    @property
    def device_kind(self) -> str:
        return self.case_id.rpartition("/")[2]


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
    command: str = "pytest perf_tests"  # that selects the same tests with the same baselines
    recording: bool = False
    asked_tolerance: Share | None = None  # the share by which a speedup may fall; None: what the machine resolves
    mutated: str | None = None  # the fault that was put into every optimized side, on purpose
    ladders: list[Ladder] = field(default_factory=list)  # what the cases show together, derived from them
    sweeps: list[Sweep] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # why it is red where no test failed
    exit_status: int | None = None  # pytest's; None: it has not ended

"""What a session knows of its cases: measured, skipped or failed, and how each check was judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpugate.environment import Environment
from gpugate.measurement.record import Measurement, Yardstick
from gpugate.summary import Summary
from gpugate.verdict import Verdict
from gpugate.workload import Size


@dataclass
class CaseResult:
    """One case of this session. Exactly one of `measurement`, `skipped` and `error` is set once it has been run."""

    case_id: str
    workload: str
    optimization: str
    compared_with: str
    size: Size
    measurement: Measurement | None = None
    summary: Summary | None = None
    skipped: str | None = None  # the reason, with the next step
    error: str | None = None  # one sentence
    environment_problem: str | None = None  # why its times say nothing of the program
    verdicts: list[Verdict] = field(default_factory=list)


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
    wall_s: float = 0.0

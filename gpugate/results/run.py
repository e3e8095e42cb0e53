"""A session on one device: its cases, its yardsticks, its code and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gpugate.machine.environment import Environment
from gpugate.measurement.record import Yardstick
from gpugate.results.case import CaseResult
from gpugate.results.fleet_plan import Shard
from gpugate.units import Count, NotNegative, Share, stored_unless


class Mode(str, Enum):
    """The purpose of a session: a developer looks, a gate needs records and fails without them, a recording writes
    them."""

    DEVELOPER = "developer"
    GATE = "gate"
    RECORDING = "recording"


@dataclass(frozen=True)
class Provenance:
    """The code that was measured and the host that measured it. None: the value does not exist or is not known.

    `repository` is an address without credentials, None for a folder. `changes` is a hash of what was not committed,
    except for the baselines; None where everything was. `host` is a hash of the host's identity. `files` are those of
    the imported code, each after its hash in git, as in `d670460b4b4a kernels/rows.py`.
    """

    repository: str | None = None
    commit: str | None = None
    changes: str | None = None
    branch: str | None = None
    ci_url: str | None = None
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
    command: str = "pytest perf_tests"  # that selects the same tests with the same baselines
    recording: bool = False
    asked_tolerance: Share | None = None  # the share by which a wall time may rise; None: what the machine resolves
    mutated: str | None = None  # the fault that was put into every optimized side, on purpose
    problems: list[str] = field(default_factory=list)  # why it is red where no test failed
    exit_status: int | None = None  # pytest's; None: it has not ended
    provenance: Provenance | None = None  # None: an older run
    memory_bytes: Count | None = None  # of the GPU; None: a CPU, or an older run
    shard: Shard | None = None  # None: a whole night

    @property
    def mode(self) -> Mode:
        return Mode.RECORDING if self.recording else Mode.GATE if self.gate else Mode.DEVELOPER

"""The doctor's probes and findings. A finding is a name, a state and one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpugate.commands.doctor.children import Children
from gpugate.machine.environment import Environment


class ProbeState(str, Enum):
    """The state of a finding. `absent` fails a gate only where a selected workload needs the missing part; `bad` makes
    every verdict doubtful."""

    OK = "ok"
    ABSENT = "absent"
    BAD = "bad"


class Group(str, Enum):
    """The groups of findings, in the order of reading."""

    MACHINE = "machine"
    PACKAGES = "packages"
    TOOLS = "tools"
    TRUST = "trust"


@dataclass(frozen=True)
class Answer:
    """A state with its sentence, which has the value and, unless the state is ok, the next step."""

    state: ProbeState
    sentence: str


@dataclass(frozen=True)
class ProbeResult:
    """One line of the diagnosis."""

    group: Group
    name: str
    state: ProbeState
    sentence: str


@dataclass(frozen=True)
class Machine:
    """The facts given to every probe. `load` is the load average of the minute before the doctor began."""

    asked: str  # the device, as `--device` takes it
    environment: Environment
    driver_gpus: int  # all GPUs that the driver shows, also those that torch cannot use
    baselines_path: Path
    load: float
    cores: int  # of the whole machine, as `load` is
    children: Children

    @property
    def has_gpu(self) -> bool:
        return self.environment.device_kind == "cuda"


@dataclass(frozen=True)
class Probe:
    """One question. An error of the probe is a finding: `bad` where the probe is vital to a gate run, else `absent`."""

    group: Group
    name: str
    look: Callable[[Machine], Answer]
    needs_gpu: bool = False
    vital: bool = False


def ok(sentence: str) -> Answer:
    return Answer(ProbeState.OK, sentence)


def absent(sentence: str) -> Answer:
    return Answer(ProbeState.ABSENT, sentence)


def bad(sentence: str) -> Answer:
    return Answer(ProbeState.BAD, sentence)

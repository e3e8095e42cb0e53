"""What the doctor looks at and what it finds: a name, a state and one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpugate.commands.doctor.children import Children
from gpugate.machine.environment import Environment


class State(str, Enum):
    """`absent` fails a gate only where a selected workload needs the thing; `bad` makes every verdict doubtful."""

    OK = "ok"
    ABSENT = "absent"
    BAD = "bad"


class Group(str, Enum):
    """Where a finding stands, in the order of reading."""

    MACHINE = "machine"
    HAS = "engines and packages"
    TOOLS = "tools"
    TRUST = "trust"


@dataclass(frozen=True)
class Answer:
    """The sentence has the value and, unless the state is ok, the next step."""

    state: State
    sentence: str


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis."""

    group: Group
    name: str
    state: State
    sentence: str


@dataclass(frozen=True)
class Machine:
    """What every probe may know. `load` is the load average of the minute before the doctor began."""

    asked: str  # the device, as `--device` takes it
    environment: Environment
    driver_gpus: int  # that the driver shows, whether torch can use them or not
    baselines_path: Path
    load: float
    cores: int  # of the whole machine, which `load` is of
    children: Children

    @property
    def has_gpu(self) -> bool:
        return self.environment.device_kind == "cuda"


@dataclass(frozen=True)
class Probe:
    """One question. What raises is `bad` where the probe is vital to a gate run, else `absent`."""

    group: Group
    name: str
    look: Callable[[Machine], Answer]
    needs_gpu: bool = False
    vital: bool = False


def ok(sentence: str) -> Answer:
    return Answer(State.OK, sentence)


def absent(sentence: str) -> Answer:
    return Answer(State.ABSENT, sentence)


def bad(sentence: str) -> Answer:
    return Answer(State.BAD, sentence)

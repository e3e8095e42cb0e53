"""The trials of a folder: one file per process, rewritten after every trial, and all of the same conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.machine.environment import Environment, compare
from gpugate.measurement.record import Process
from gpugate.store.json_file import JsonFile, NextSteps
from gpugate.units import Natural, NotNegative, Positive, Share
from tools.archive import list_files

# 0 is A/A: nothing changed, so every alarm is false.
SLOWDOWNS: tuple[float, ...] = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.10)
_NAME = re.compile(r"trials-(\d+)\.json")


class TrustError(GpugateError):
    """Trials cannot be taken, kept or continued."""


@dataclass(frozen=True)
class Trial:
    """A case measured against itself; the side that `TimedBuild` calls optimized does `slowdown` more work.

    `slowdown` is a share of the time per step: 0.05 is 5 %. `process` is the number of the fresh process that took the
    trial: trials of one process share what varies between processes.
    """

    case_id: str
    process: Natural
    slowdown: Share
    instances: Process
    wall_s: NotNegative


@dataclass(frozen=True)
class Conditions:
    """The conditions that trials must share to be counted together."""

    environment: Environment
    budget_s: Positive
    source_hashes: Mapping[str, str]  # by workload

    def differences(self, now: Conditions) -> list[str]:
        """Texts such as `budget 6 s -> 2 s`. A workload that only one of both has is no difference."""
        found = list(compare(self.environment, now.environment).differences)
        if self.budget_s != now.budget_s:
            found.append(f"budget {self.budget_s:g} s -> {now.budget_s:g} s")
        both = sorted(set(self.source_hashes) & set(now.source_hashes))
        changed = [name for name in both if self.source_hashes[name] != now.source_hashes[name]]
        return found + [f"the source of {name} changed" for name in changed]

    def check_same(self, now: Conditions, what: str) -> None:
        """Raises TrustError with the differences where trials of both must not be counted together."""
        differences = "; ".join(self.differences(now))
        if differences:
            raise TrustError(f"{what} is of other conditions than earlier trials ({differences}): give another folder")


@dataclass(frozen=True)
class TrialsFile:
    """One process. `case_ids` were selected and can be measured here, `skipped` (with the reason) cannot."""

    process: Natural
    conditions: Conditions
    case_ids: tuple[str, ...]
    skipped: Mapping[str, str]
    trials: tuple[Trial, ...] = ()


_AGAIN = "delete it and take its trials again"
FILE = JsonFile(
    "gpugate-trials",
    1,  # History: 1: the trials of one process.
    TrialsFile,
    TrustError,
    NextSteps(
        _AGAIN, _AGAIN, other_version="give an empty folder", unwritable="make room, every trial before it is kept"
    ),
)


@dataclass(frozen=True)
class Taken:
    """The trials of all processes. `conditions` is None before the first process."""

    trials: tuple[Trial, ...] = ()
    conditions: Conditions | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)  # cases that cannot be measured here, with the reason
    last_process: int = 0


def trials_path(folder: Path, process: int) -> Path:
    return folder / f"trials-{process:03}.json"


def read_all(folder: Path) -> Taken:
    """Raises TrustError, naming the file, for one that cannot be read, is a copy or is of other conditions."""
    named = ((_NAME.fullmatch(path.name), path) for path in list_files(folder, "trials-*.json"))
    paths = {int(match[1]): path for match, path in named if match}
    taken = Taken()
    for process in sorted(paths):
        taken = _add_file(taken, process, paths[process])
    return taken


def _add_file(taken: Taken, process: int, path: Path) -> Taken:
    file = FILE.read(path)
    if file.process != process:
        raise TrustError(f"{path} holds the trials of process {file.process}: it is a copy or was renamed, delete it")
    conditions, known = file.conditions, taken.conditions
    if known is not None:
        known.check_same(conditions, str(path))
        conditions = replace(known, source_hashes={**known.source_hashes, **conditions.source_hashes})
    return Taken((*taken.trials, *file.trials), conditions, {**taken.skipped, **file.skipped}, process)

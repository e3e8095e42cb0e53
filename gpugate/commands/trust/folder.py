"""The folder of a trust run: one file per process, all of the same conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpugate.commands.trust import trials_file
from gpugate.commands.trust.trial import Trial
from gpugate.commands.trust.trials_file import Conditions
from gpugate.errors import TrustError

_NAME = re.compile(r"trials-(\d+)\.json")


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
    named = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    paths = {int(match[1]): path for match, path in named if match}
    taken = Taken()
    for process in sorted(paths):
        taken = _with_file(taken, process, paths[process])
    return taken


def _with_file(taken: Taken, process: int, path: Path) -> Taken:
    file = trials_file.read(path)
    if file.process != process:
        raise TrustError(f"{path} holds the trials of process {file.process}: it is a copy or was renamed, delete it")
    conditions, known = file.conditions, taken.conditions
    if known is not None:
        known.check_same(conditions, str(path))
        conditions = replace(known, source_hashes={**known.source_hashes, **conditions.source_hashes})
    return Taken((*taken.trials, *file.trials), conditions, {**taken.skipped, **file.skipped}, process)

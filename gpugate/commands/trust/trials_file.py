"""The file of one process of trials: rewritten after every trial and valid at any moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpugate.commands.trust.trial import Trial
from gpugate.errors import TrustError
from gpugate.machine.environment import Environment, compare
from gpugate.store.codec import (
    from_json,
    naming_the_file,
    parse,
    pretty,
    to_json,
    with_header,
    without_header,
    write_atomically,
)
from gpugate.units import Natural, Positive

FORMAT = "gpugate-trials"
# History: 1: the trials of one process.
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Conditions:
    """What trials have in common that are counted together."""

    environment: Environment
    budget_s: Positive
    source_hashes: Mapping[str, str]  # by workload

    def differences(self, now: Conditions) -> list[str]:
        """Texts such as `budget 6 s -> 2 s`; none where only one of both knows a workload."""
        found = list(compare(self.environment, now.environment).differences)
        if self.budget_s != now.budget_s:
            found.append(f"budget {self.budget_s:g} s -> {now.budget_s:g} s")
        both = sorted(set(self.source_hashes) & set(now.source_hashes))
        changed = [name for name in both if self.source_hashes[name] != now.source_hashes[name]]
        return found + [f"the source of {name} changed" for name in changed]

    def check_same(self, now: Conditions, what: str) -> None:
        """Raises TrustError, saying what differs, where trials of both must not be counted together."""
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


def write(path: Path, file: TrialsFile) -> None:
    """Replaces the file in one step. Raises TrustError where it cannot be written; the old file then stays."""
    write_whole(path, pretty(with_header(FORMAT, FORMAT_VERSION, to_json(file))) + "\n")


def write_whole(path: Path, content: str | bytes) -> None:
    """The same for any file beside trials."""
    try:
        write_atomically(path, content)
    except OSError as error:
        problem = error.strerror or str(error)
        raise TrustError(f"{path} cannot be written ({problem}): make room, every trial before it is kept") from error


def read(path: Path) -> TrialsFile:
    """Raises TrustError for a file that is not there, damaged, or of a newer format."""
    again = "delete it and take its trials again"
    steps = {"unreadable": again, "damaged": again, "instead_of_upgrading": "give an empty folder"}
    with naming_the_file(path, TrustError, **steps):
        return from_json(TrialsFile, without_header(FORMAT, FORMAT_VERSION, parse(path.read_text(encoding="utf-8"))))

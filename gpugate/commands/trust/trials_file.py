"""The file of one process of trials: rewritten after every trial and valid at any moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpugate.commands.trust.trial import Trial
from gpugate.errors import TrustError
from gpugate.machine.environment import Environment, compare
from gpugate.store.json_file import JsonFile, NextSteps
from gpugate.units import Natural, Positive


@dataclass(frozen=True)
class Conditions:
    """The conditions that trials must share to be counted together."""

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


_AGAIN = "delete it and take its trials again"
FILE = JsonFile(
    "gpugate-trials",
    1,  # History: 1: the trials of one process.
    TrialsFile,
    TrustError,
    NextSteps(_AGAIN, _AGAIN, newer="give an empty folder", unwritable="make room, every trial before it is kept"),
)
read, write = FILE.read, FILE.write

"""The orders of one fresh process of duets, and the file of its results."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.errors import CompareError
from gpugate.results.duet import DuetProcess
from gpugate.store.json_file import JsonFile, NextSteps
from gpugate.units import Count, Positive


@dataclass(frozen=True)
class DuetPlan:
    """The orders of one process. `case_ids` are the cases to measure; None: all that are selected."""

    base: str  # the folder of the base
    budget_s: Positive
    number: Count  # of the process, from 0: every second one is swapped
    case_ids: tuple[str, ...] | None = None
    output: str = ""  # path of the DuetProcess, in a folder that `run_process` makes

    @property
    def swapped(self) -> bool:
        """True where the head is the engine's reference side: what the engine does to one side then cancels."""
        return self.number % 2 == 1


FILE = JsonFile(
    "gpugate-duets",
    1,
    DuetProcess,
    CompareError,
    NextSteps(
        unreadable="compare again", damaged="compare again", newer="compare again", unwritable="free space and repeat"
    ),
)

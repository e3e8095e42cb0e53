"""The sampling time of each case of a developer's run on a CPU, where the user gives none.

All cases share PLANNED_S, so that a first look at the whole suite takes two minutes. The time that a case takes beside
its sampling (builds, compilation, proofs, checks) is estimated by that of the cases before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median

from gpugate.measurement.settings import Settings

PLANNED_S = 104.0  # for all cases; imports and the report come on top
LEAST_S, MOST_S = 1.8, Settings.budget_s  # for the sampling of one case
FIRST_OVERHEAD_S = 3.0  # of the first case, before any is known
FEWEST_PAIRS = 4  # of a case whose time is spent: long steps would exceed it several times


@dataclass
class TimePlan:
    """The shared time of a session: the number of cases that are left, and the overheads of those before them."""

    cases: int
    overheads_s: list[float] = field(default_factory=list)
    budget_s: float = LEAST_S  # of the present case

    def plan(self, settings: Settings, elapsed_s: float) -> Settings:
        """The settings of the present case, `elapsed_s` after the beginning of the session."""
        share_s = (PLANNED_S - elapsed_s) / max(1, self.cases)
        self.budget_s = min(MOST_S, max(LEAST_S, share_s - self.overhead_s))
        return replace(settings, budget_s=self.budget_s, min_pairs=FEWEST_PAIRS)

    def affords(self, seconds: float, elapsed_s: float) -> bool:
        """True where `seconds` more for the present case leave the least time to the cases after it."""
        return elapsed_s + seconds + (self.cases - 1) * (self.overhead_s + LEAST_S) <= PLANNED_S

    def end_case(self, took_s: float) -> None:
        self.cases -= 1
        self.overheads_s.append(max(0.0, took_s - self.budget_s))

    @property
    def overhead_s(self) -> float:
        """The expected time of a case beside its sampling: the median, which one long compilation does not move."""
        return median(self.overheads_s) if self.overheads_s else FIRST_OVERHEAD_S

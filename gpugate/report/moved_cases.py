"""The cases that moved between two runs by more than their noise. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpugate.statistics.intervals import Estimate


@dataclass(frozen=True)
class Change:
    """One quantity of a case in two runs."""

    before: Estimate
    after: Estimate

    @property
    def share(self) -> float:
        """0.1 where the median rose by a tenth."""
        return self.after.median / self.before.median - 1

    @property
    def is_noise(self) -> bool:
        return self.before.overlaps(self.after)


@dataclass(frozen=True)
class Moved:
    """A case whose intervals of two runs do not overlap, in the speedup or in the time per step."""

    case_id: str
    speedup: Change
    per_step_ms: Change

    @property
    def share(self) -> float:
        """The larger change of those that are not noise."""
        return max((abs(one.share) for one in (self.speedup, self.per_step_ms) if not one.is_noise), default=0.0)


def find_moved(
    before: Mapping[str, tuple[Estimate, Estimate]], after: Mapping[str, tuple[Estimate, Estimate]]
) -> list[Moved]:
    """The cases of both runs that moved, the furthest first, from the speedup and the time per step of each case."""
    both = (Moved(case_id, *map(Change, before[case_id], after[case_id])) for case_id in after if case_id in before)
    apart = [one for one in both if not (one.speedup.is_noise and one.per_step_ms.is_noise)]
    return sorted(apart, key=lambda moved: -moved.share)

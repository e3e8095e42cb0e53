"""The changes between two runs: machine and software, code, verdicts, measured cases and times. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gpugate.machine.environment import Match, compare
from gpugate.results.run import Night, RunResult
from gpugate.results.verdict import Check, Outcome
from gpugate.statistics.intervals import Estimate
from gpugate.units import SHORT_COMMIT

SOURCE_CHANGED = "the workload's source changed"


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
        return self.before.low <= self.after.high and self.after.low <= self.before.high


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


@dataclass(frozen=True)
class Flip:
    """A check of a case whose outcome is another than before. None: not judged in that run."""

    case_id: str
    check: Check
    before: Outcome | None
    after: Outcome | None


def find_flips(then: RunResult, now: RunResult) -> Iterator[Flip]:
    """The checks of the cases that both runs judged."""
    for case_id, case in now.cases.items():
        before, after = (
            {one.check: one.outcome for one in each.verdicts} for each in (then.cases.get(case_id, case), case)
        )
        for check in {**before, **after} if before and after else ():
            if before.get(check) is not after.get(check):
                yield Flip(case_id, check, before.get(check), after.get(check))


@dataclass(frozen=True)
class Changes:
    """The changes from one night to another. Cases are gained and lost by their times, whatever was selected."""

    then: Night
    now: Night

    @cached_property
    def environment(self) -> Match:
        return compare(self.then.environment, self.now.environment)

    @cached_property
    def edited(self) -> list[str]:
        """The workloads whose source changed."""
        then, now = self.then.source_hashes, self.now.source_hashes
        return sorted(name for name in then.keys() & now.keys() if then[name] != now[name])

    def describe_code(self) -> Iterator[str]:
        """Yields texts such as `commit 1f0c -> 77ab`."""
        then, now = self.then.provenance, self.now.provenance
        if then.commit != now.commit:
            yield f"commit {_short(then.commit)} -> {_short(now.commit)}"
        if then.changes != now.changes:
            yield f"uncommitted changes {_short(then.changes, 'none')} -> {_short(now.changes, 'none')}"
        if then.container != now.container:
            yield f"image {then.container or 'unknown'} -> {now.container or 'unknown'}"
        yield from (f"the source of {name} changed" for name in self.edited)

    @cached_property
    def gained(self) -> list[str]:
        return [case_id for case_id in self.now.measured if case_id not in self.then.measured]

    @cached_property
    def lost(self) -> list[str]:
        return [case_id for case_id in self.then.measured if case_id not in self.now.measured]

    @cached_property
    def moved(self) -> list[Moved]:
        """The cases of both runs whose times moved by more than their noise, the furthest first."""
        both = (
            Moved(name, Change(then.speedup, now.speedup), Change(then.per_step_ms, now.per_step_ms))
            for name, now in self.now.cases.items()
            if (then := self.then.cases.get(name)) is not None
        )
        apart = [one for one in both if not (one.speedup.is_noise and one.per_step_ms.is_noise)]
        return sorted(apart, key=lambda moved: -moved.share)


def _short(value: str | None, absent: str = "unknown") -> str:
    return value[:SHORT_COMMIT] if value else absent

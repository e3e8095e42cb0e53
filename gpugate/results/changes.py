"""The changes between two runs: machine and software, code, verdicts, measured cases and times. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gpugate.machine.environment import Environment, Match, compare
from gpugate.results.case import decider
from gpugate.results.run import Night, Provenance, RunResult
from gpugate.results.verdict import Check, Outcome
from gpugate.statistics.intervals import Estimate
from gpugate.units import SHORT_COMMIT


@dataclass(frozen=True)
class Facts:
    """The part of a run that is compared. `times` are the speedup and the milliseconds per step of each case."""

    environment: Environment
    provenance: Provenance
    measured: tuple[str, ...]
    times: Mapping[str, tuple[Estimate, Estimate]]
    source_hashes: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, Mapping[Check, Outcome]] = field(default_factory=dict)


def facts_of_run(run: RunResult) -> Facts:
    """The facts of a run; the times of a case are those of the process that decided."""
    decided = {case_id: found.summary for case_id, case in run.cases.items() if (found := decider(case))}
    return Facts(
        environment=run.environment,
        provenance=run.provenance or Provenance(),
        measured=tuple(case_id for case_id, case in run.cases.items() if case.measurement is not None),
        times={case_id: (summary.speedup, summary.optimized_ms) for case_id, summary in decided.items()},
        source_hashes=run.source_hashes,
        outcomes={name: {one.check: one.outcome for one in case.verdicts} for name, case in run.cases.items()},
    )


def facts_of_night(night: Night) -> Facts:
    """The facts of a night from the store, which has no outcome of each check."""
    times = {case_id: (case.speedup, case.estimate("optimized_ms")) for case_id, case in night.cases.items()}
    return Facts(night.environment, night.provenance, tuple(night.cases), times, night.source_hashes)


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


@dataclass(frozen=True)
class Flip:
    """A check of a case whose outcome is another than before. None: not judged in that run."""

    case_id: str
    check: Check
    before: Outcome | None
    after: Outcome | None


@dataclass(frozen=True)
class Changes:
    """The changes from one run to another. Cases are gained and lost by their measurement, whatever was selected."""

    then: Facts
    now: Facts

    @cached_property
    def environment(self) -> Match:
        return compare(self.then.environment, self.now.environment)

    @cached_property
    def edited(self) -> list[str]:
        """The workloads whose source changed."""
        then, now = self.then.source_hashes, self.now.source_hashes
        return sorted(name for name in then.keys() & now.keys() if then[name] != now[name])

    @cached_property
    def code(self) -> list[str]:
        """Texts such as `commit 1f0c -> 77ab`."""
        return list(_code_changes(self.then.provenance, self.now.provenance))

    @cached_property
    def flips(self) -> list[Flip]:
        return [flip for case_id in self.now.outcomes for flip in self._flips(case_id)]

    def _flips(self, case_id: str) -> Iterator[Flip]:
        """The checks of a case that both runs judged."""
        then, now = (facts.outcomes.get(case_id, {}) for facts in (self.then, self.now))
        if then and now:
            for check in {**then, **now}:
                if then.get(check) is not now.get(check):
                    yield Flip(case_id, check, then.get(check), now.get(check))

    @cached_property
    def gained(self) -> list[str]:
        return [case_id for case_id in self.now.measured if case_id not in self.then.measured]

    @cached_property
    def lost(self) -> list[str]:
        return [case_id for case_id in self.then.measured if case_id not in self.now.measured]

    @cached_property
    def moved(self) -> list[Moved]:
        """The cases of both runs whose times moved by more than their noise, the furthest first."""
        then, now = self.then.times, self.now.times
        both = (Moved(case_id, *map(Change, then[case_id], now[case_id])) for case_id in now if case_id in then)
        apart = [one for one in both if not (one.speedup.is_noise and one.per_step_ms.is_noise)]
        return sorted(apart, key=lambda moved: -moved.share)


SOURCE_CHANGED = "the workload's source changed"


def describe_conditions(then: Night, now: Night, workload: str | None = None) -> tuple[str, ...]:
    """The differences in machine, software and settings between two nights, and in the source of a workload."""
    edited = workload is not None and then.source_hashes.get(workload) != now.source_hashes.get(workload)
    return (*compare(then.environment, now.environment).differences, *([SOURCE_CHANGED] if edited else []))


def _code_changes(then: Provenance, now: Provenance) -> Iterator[str]:
    if then.commit != now.commit:
        yield f"commit {_short(then.commit)} -> {_short(now.commit)}"
    if then.changes != now.changes:
        yield f"uncommitted changes {_short(then.changes, 'none')} -> {_short(now.changes, 'none')}"
    if then.container != now.container:
        yield f"image {then.container or 'unknown'} -> {now.container or 'unknown'}"


def _short(value: str | None, absent: str = "unknown") -> str:
    return value[:SHORT_COMMIT] if value else absent

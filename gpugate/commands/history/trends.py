"""The trend of every case over the nights of one machine: its series, and its level changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpugate.commands.history.level_changes import LevelChange, fewest_values, level_changes, level_of_one
from gpugate.results.changes import SOURCE_CHANGED, describe_conditions
from gpugate.results.night import CaseNight, Night, workload_of

SERIES_OF_A_CASE = 2  # its speedup, and the time per step of its optimized side


@dataclass(frozen=True)
class Step:
    """The medians before and after a level changed, each over the nights up to the next change."""

    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after / self.before - 1


@dataclass(frozen=True)
class Mark:
    """The first night of a new level. None: that series kept its level."""

    night: Night
    speedup: Step | None
    optimized_ms: Step | None
    together_with: tuple[str, ...]  # what else was another than on the night before


@dataclass(frozen=True)
class Trend:
    """One case over the newest nights that measured it, the oldest first; its marks rest on all `measured` nights."""

    case_id: str
    workload: str
    nights: tuple[Night, ...]
    seen: tuple[CaseNight, ...]
    measured: int
    marks: tuple[Mark, ...]
    source_changed: tuple[Night, ...]  # the first nights with another source of the workload


@dataclass(frozen=True)
class MachineHistory:
    """The newest nights of one machine. A series shorter than `fewest_nights` cannot be marked at `level`.

    `unit` is what one value of a series is of: a night, or a commit.
    """

    machine: str
    nights: tuple[Night, ...]
    trends: tuple[Trend, ...]
    level: float
    fewest_nights: int
    unit: str = "night"

    @property
    def software_changed(self) -> list[tuple[Night, tuple[str, ...]]]:
        """The nights whose environment is another than that of the night before, with what differs."""
        pairs = ((now, describe_conditions(then, now)) for then, now in pairwise(self.nights))
        return [(night, differences) for night, differences in pairs if differences]


def build_histories(nights: Sequence[Night], last: int, unit: str = "night") -> list[MachineHistory]:
    """Returns one history for each machine.

    A history shows the `last` nights, but its marks rest on all nights: each was a look that could have made a mark.
    """
    by_machine: dict[str, list[Night]] = {}
    for night in nights:
        by_machine.setdefault(night.machine, []).append(night)
    return [_history(machine, own, last, unit) for machine, own in sorted(by_machine.items())]


def _history(machine: str, nights: Sequence[Night], last: int, unit: str) -> MachineHistory:
    ids = dict.fromkeys(case_id for night in nights for case_id in night.cases)
    level = level_of_one(SERIES_OF_A_CASE * len(ids))
    newest = nights[-last:]
    shown = {case_id for night in newest for case_id in night.cases}
    trends = tuple(_trend(case_id, nights, newest[0], level) for case_id in ids if case_id in shown)
    return MachineHistory(machine, tuple(newest), trends, level, fewest_values(level), unit)


def _trend(case_id: str, nights: Sequence[Night], since: Night, level: float) -> Trend:
    of_case = [(night, night.cases[case_id]) for night in nights if case_id in night.cases]
    own, seen = zip(*of_case, strict=True)
    workload = workload_of(case_id)
    changed = (now for then, now in pairwise(own) if SOURCE_CHANGED in describe_conditions(then, now, workload))
    hidden = own.index(next(night for night in own if night.started >= since.started))
    return Trend(
        case_id=case_id,
        workload=workload,
        nights=own[hidden:],
        seen=seen[hidden:],
        measured=len(own),
        marks=tuple(mark for mark in _marks(own, seen, level) if mark.night in own[hidden:]),
        source_changed=tuple(night for night in changed if night in own[hidden:]),
    )


def _marks(nights: Sequence[Night], seen: Sequence[CaseNight], level: float) -> Iterator[Mark]:
    """The level changes of both series, those of one night in one mark."""
    speedups = [one.speedup.median for one in seen]
    times_ms = [one.optimized_ms for one in seen]
    of_speedup, of_time = level_changes(speedups, level), level_changes(times_ms, level)
    for index in sorted({change.first for change in (*of_speedup, *of_time)}):
        yield Mark(
            night=nights[index],
            speedup=_step(speedups, of_speedup, index),
            optimized_ms=_step(times_ms, of_time, index),
            together_with=describe_conditions(nights[index - 1], nights[index], seen[index].workload),
        )


def _step(values: Sequence[float], changes: Sequence[LevelChange], index: int) -> Step | None:
    starts = [0, *(change.first for change in changes), len(values)]
    for place, change in enumerate(changes, start=1):
        if change.first == index:
            before, after = values[starts[place - 1] : index], values[index : starts[place + 1]]
            return Step(float(np.median(before)), float(np.median(after)))
    return None

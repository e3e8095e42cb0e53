"""The trend of every case over the nights of one machine: its series, and its level changes. Pure.

A series is judged as it stood after each of its nights, the oldest first, so that a mark that was made stays. The test
looks at the nights of the present level and uses their ranks only, so that its error does not depend on how the nights
are distributed, as long as the nights of one level are exchangeable. The new level begins at the split of least
absolute deviations from the medians of both sides.

The test is that of Mann and Whitney (1947) at every split that leaves MIN_SIDE nights on either side. Its error
is spent over the looks, as in Lan and DeMets, Discrete sequential boundaries for clinical trials (Biometrika 70, 1983):
at look k a p-value counts from e / (SPENDING k^2) on, where e is the error of the test. What all looks spend together
converges, and SPENDING makes it less than e, since splits and looks depend on each other. Beside one look at the level
e, a clear step is marked a few nights later. P-values are exact where one side has at most LONGEST_EXACT_SIDE nights,
else those of the normal approximation.

results/cpu/level-changes.md has the simulation from which SPENDING was chosen, for a horizon of 365 nights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from gpugate import units
from gpugate.results.changes import SOURCE_CHANGED, Changes
from gpugate.results.run import CaseNight, Night, workload_of

Values: TypeAlias = npt.NDArray[np.float64]
MIN_SIDE = 3  # nights: one bad night, or two, are no level
SMALLEST_STEP = 0.003  # of a speedup: what no gate would see is no level either, however sure it is
FALSE_MARKS = 0.05  # the chance that a whole table of which nothing changes is ever marked
SPENDING = 0.3
LONGEST_EXACT_SIDE = 20  # nights
SERIES_OF_A_CASE = 2  # its speedup, and the time per step of its optimized side


@dataclass(frozen=True)
class Mark:
    """The first night of a new level, in words such as `level changed: speedup 3.00x -> 2.80x (-6.7 %)`."""

    night: Night
    words: str


@dataclass(frozen=True)
class Trend:
    """One case over the newest nights that measured it, the oldest first; its marks rest on all `measured` nights."""

    case_id: str
    nights: tuple[Night, ...]
    seen: tuple[CaseNight, ...]
    measured: int
    marks: tuple[Mark, ...]
    source_changed: tuple[Night, ...]  # the first nights with another source of the workload


@dataclass(frozen=True)
class MachineHistory:
    """The newest nights of one machine. A series shorter than `fewest_nights` cannot be marked."""

    machine: str
    nights: tuple[Night, ...]
    trends: tuple[Trend, ...]
    fewest_nights: int

    @property
    def software_changed(self) -> list[tuple[Night, tuple[str, ...]]]:
        """The nights whose environment is another than that of the night before, with what differs."""
        pairs = ((now, Changes(then, now).environment.differences) for then, now in pairwise(self.nights))
        return [(night, differences) for night, differences in pairs if differences]


def build_histories(nights: Sequence[Night], last: int) -> list[MachineHistory]:
    """Returns one history for each machine.

    A history shows the `last` nights, but its marks rest on all nights: each was a look that could have made a mark.
    """
    by_machine: dict[str, list[Night]] = {}
    for night in nights:
        by_machine.setdefault(night.machine, []).append(night)
    return [_history(machine, own, last) for machine, own in sorted(by_machine.items())]


def _history(machine: str, nights: Sequence[Night], last: int) -> MachineHistory:
    ids = dict.fromkeys(case_id for night in nights for case_id in night.cases)
    level = level_of_one(SERIES_OF_A_CASE * len(ids))
    newest = nights[-last:]
    shown = {case_id for night in newest for case_id in night.cases}
    trends = tuple(_trend(case_id, nights, last, level) for case_id in ids if case_id in shown)
    return MachineHistory(machine, tuple(newest), trends, fewest_values(level))


def _trend(case_id: str, nights: Sequence[Night], last: int, level: float) -> Trend:
    own, seen = zip(*((night, night.cases[case_id]) for night in nights if case_id in night.cases), strict=True)
    workload = workload_of(case_id)
    changed = [now for then, now in pairwise(own) if workload in Changes(then, now).edited]
    hidden = sum(case_id in night.cases for night in nights[:-last])
    return Trend(
        case_id=case_id,
        nights=own[hidden:],
        seen=seen[hidden:],
        measured=len(own),
        marks=tuple(mark for mark in _marks(own, seen, changed, level) if mark.night in own[hidden:]),
        source_changed=tuple(night for night in changed if night in own[hidden:]),
    )


def _marks(
    nights: Sequence[Night], seen: Sequence[CaseNight], changed: Sequence[Night], level: float
) -> Iterator[Mark]:
    """Yields the level changes of both series, those of one night in one mark, with what else was another than on the
    night before; `changed` are the nights with another source."""
    found: dict[int, list[str]] = {}
    for name, written, values in (
        ("speedup", units.ratio, [one.speedup.median for one in seen]),
        ("per step", units.milliseconds, [one.per_step_ms.median for one in seen]),
    ):
        starts = [change.first for change in level_changes(values, level)]
        for start, first, end in zip([0, *starts], starts, [*starts[1:], len(values)], strict=False):
            before, after = float(np.median(values[start:first])), float(np.median(values[first:end]))
            change = units.signed_percent(after / before - 1)
            found.setdefault(first, []).append(f"{name} {written(before)} -> {written(after)} ({change})")
    for first, words in sorted(found.items()):
        edited = [SOURCE_CHANGED] if nights[first] in changed else []
        others = [*Changes(nights[first - 1], nights[first]).environment.differences, *edited]
        causes = f"; together with {'; '.join(others)}" if others else ""
        yield Mark(nights[first], f"level changed: {', '.join(words)}{causes}")


@dataclass(frozen=True)
class LevelChange:
    """`first` is the index of the new level's first value, `found` that of the value at which it was marked."""

    first: int
    found: int


def level_of_one(series: int) -> float:
    """The error that each of so many series may make, so that together they keep FALSE_MARKS (Sidak, 1967)."""
    return float(1 - (1 - FALSE_MARKS) ** (1 / max(series, 1)))


@cache
def fewest_values(level: float) -> int:
    """The length from which on a series can be marked at all: that of the clearest step there is, in its middle."""
    length = 2 * MIN_SIDE
    while 2 / math.comb(length, length // 2) > _spent_at(np.asarray(length), level):
        length += 1
    return length


def level_changes(values: Sequence[float], level: float) -> list[LevelChange]:
    """Finds the level changes of a series of positive values, in order, with an error of at most `level` in all."""
    series = np.asarray(values, dtype=float)
    found: list[LevelChange] = []
    while (change := _next_change(series, found[-1] if found else None, level)) is not None:
        found.append(change)
    return found


def _next_change(values: Values, last: LevelChange | None, level: float) -> LevelChange | None:
    """The first change of the level that began with `last`, at a look later than that which found `last`."""
    start, seen = (last.first, last.found + 1) if last else (0, 0)
    own = values[start:]
    marked = np.any(np.abs(split_sums(own)) >= critical_sums(len(own), start, level), axis=0)
    for now in range(max(seen - start, 0), len(own)):
        if not marked[now]:
            continue
        first = _clearest_split(own[: now + 1])
        if abs(np.median(own[first : now + 1]) / np.median(own[:first]) - 1) >= SMALLEST_STEP:
            return LevelChange(start + first, start + now)
    return None


def _clearest_split(values: Values) -> int:
    """The split at which the absolute deviations from the medians of both sides have the least sum."""
    splits = range(MIN_SIDE, len(values) - MIN_SIDE + 1)
    return min(
        splits, key=lambda split: sum(np.abs(side - np.median(side)).sum() for side in np.split(values, [split]))
    )


def split_sums(values: Values) -> npt.NDArray[np.int32]:
    """Computes Mann and Whitney's 2 U - n m for every split of every look of series of shape (..., nights).

    The result has the shape (..., nights, nights): its element [i, j] compares the values up to i with those after i up
    to j, and is the number of pairs that rise less the number that fall. Elements with i >= j are 0.
    """
    rising = np.sign(values[..., np.newaxis, :] - values[..., :, np.newaxis]).astype(np.int32)
    return np.cumsum(np.triu(np.cumsum(rising, axis=-2, dtype=np.int32), 1), axis=-1, dtype=np.int32)


@cache
def critical_sums(nights: int, earlier: int, level: float) -> Values:
    """Returns the size from which on each element of `split_sums` counts; inf where no size does.

    `earlier` is the number of the series' nights before the level began: they count as looks too.
    """
    last = np.arange(1, nights + 1)
    before = last[:, np.newaxis]
    after = np.maximum(last - before, 0)
    spent = _spent_at(earlier + last, level)
    critical: Values = 1 + stats.norm.isf(spent / 2) * np.sqrt(before * after * (last + 1) / 3)
    shorter: dict[int, Values] = {many: np.ones(1) for many in range(nights + 1)}
    for few in range(1, min(LONGEST_EXACT_SIDE, nights - 1) + 1):
        chances = {0: np.ones(1)}  # of each U, by the length of the other side
        for many in range(1, nights - few + 1):
            own = np.zeros(few * many + 1)
            own[many:] = few / (few + many) * shorter[many]  # the largest value is one of the few
            own[: few * (many - 1) + 1] += many / (few + many) * chances[many - 1]
            chances[many] = own
            rare = int(np.searchsorted(np.cumsum(own), spent[few + many - 1] / 2, side="right"))
            size = few * many - 2 * (rare - 1) if rare else math.inf
            critical[few - 1, few + many - 1] = critical[many - 1, few + many - 1] = size
        shorter = chances
    critical[np.minimum(before, after) < MIN_SIDE] = math.inf
    return critical


def _spent_at(look: npt.NDArray[np.int64], level: float) -> Values:
    spent: Values = level / (SPENDING * look.astype(float) ** 2)
    return np.minimum(spent, 1.0)

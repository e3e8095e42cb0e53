"""Level changes of a series: a rank test at every split, with a bounded chance of false marks. Pure.

The series is split before every night that leaves MIN_SIDE nights on either side, and both sides are compared by the
test of Mann and Whitney (1947), whose p-value does not depend on how the values are distributed. The smallest of m
p-values, times m (Bonferroni), decides; what a mark separates is split again, as in Daly et al., The Use of Change
Point Detection to Identify Software Performance Regressions in a Continuous Integration System (ICPE 2020).

Up to LONGEST_EXACT nights p-values are exact. To count the arrangements of more takes seconds a series, so that a
longer one has the p-values of the normal approximation, at all of its splits alike. Near the ends they are larger: a
step of the last few nights is marked some nights later than in a short series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from gpugate.statistics.tolerance import RATIO_FLOOR_OVER_NIGHTS

Values: TypeAlias = npt.NDArray[np.float64]
MIN_SIDE = 3  # nights: one bad night, or two, are no level
LONGEST_EXACT = 60  # nights
SMALLEST_STEP = RATIO_FLOOR_OVER_NIGHTS  # what no gate would see is no level either, however sure it is
FALSE_MARKS = 0.05  # the chance that a whole table of which nothing changed has a mark


@dataclass(frozen=True)
class LevelChange:
    """`first` is the index of the new level's first value; `p_value` is corrected for the splits that were tried."""

    first: int
    p_value: float


def level_of_one(series: int) -> float:
    """The level at which each of so many series is tested, so that together they keep FALSE_MARKS (Sidak, 1967)."""
    return float(1 - (1 - FALSE_MARKS) ** (1 / max(series, 1)))


@cache
def fewest_values(level: float) -> int:
    """The length from which on a series can be marked at all: that of the clearest step there is, in its middle."""
    length = 2 * MIN_SIDE
    while _splits(length) * 2 / math.comb(length, length // 2) > level:
        length += 1
    return length


def level_changes(values: Sequence[float], level: float) -> list[LevelChange]:
    """Finds the level changes of a series of positive values, in order; none in one shorter than `fewest_values`."""
    if len(values) < fewest_values(level):
        return []
    p_values = corrected_p_values(np.asarray(values, dtype=float))
    best = int(np.argmin(p_values))
    if p_values[best] > level:
        return []
    first = best + MIN_SIDE
    if abs(np.median(values[first:]) / np.median(values[:first]) - 1) < SMALLEST_STEP:
        return []
    before, after = level_changes(values[:first], level), level_changes(values[first:], level)
    later = [LevelChange(first + change.first, change.p_value) for change in after]
    return [*before, LevelChange(first, float(p_values[best])), *later]


def corrected_p_values(values: Values) -> Values:
    """Computes the corrected p-value at every split of series of shape (..., n).

    The result has the shape (..., n - 2 MIN_SIDE + 1); each p-value is multiplied by the number of splits. A series of
    which all values are equal has no level to change: its p-values are 1.
    """
    length = values.shape[-1]
    # One kind at every split: next to an exact one the normal approximation's larger p-value would move the mark.
    tested = _exact(values) if length <= LONGEST_EXACT else _approximate(values)
    corrected: Values = np.minimum(tested * _splits(length), 1.0)
    return corrected


def _exact(values: Values) -> Values:
    splits = range(MIN_SIDE, values.shape[-1] - MIN_SIDE + 1)
    tested = [
        stats.mannwhitneyu(values[..., :split], values[..., split:], axis=-1, method="exact").pvalue for split in splits
    ]
    return np.stack(tested, axis=-1)


def _approximate(values: Values) -> Values:
    """Returns the p-values of `mannwhitneyu(method="asymptotic")` for every split, from one ranking of the series."""
    length = values.shape[-1]
    before = np.arange(MIN_SIDE, length - MIN_SIDE + 1)
    after = length - before
    ranks = stats.rankdata(values, axis=-1)
    sums = np.cumsum(ranks, axis=-1)[..., MIN_SIDE - 1 : length - MIN_SIDE]
    deviation = np.sqrt(before * after / length * ranks.var(axis=-1, ddof=1, keepdims=True))  # of the sum; knows ties
    distance = np.abs(sums - before * (length + 1) / 2) - 0.5
    p_values: Values = 2 * stats.norm.sf(distance / np.where(deviation > 0, deviation, 1.0))
    return p_values


def _splits(length: int) -> int:
    return length - 2 * MIN_SIDE + 1

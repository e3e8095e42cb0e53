"""On which night a level changed: what is marked, what is not, and how often chance alone is."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from gpugate.commands.trends import (
    FALSE_MARKS,
    LONGEST_EXACT_SIDE,
    MIN_SIDE,
    SPENDING,
    critical_sums,
    fewest_values,
    level_changes,
    level_of_one,
    split_sums,
)
from tests.support.stored_runs import speedups

ALONE = level_of_one(1)


@pytest.mark.parametrize(("before", "level"), [(8, 4.0), (12, 2.95), (20, 3.05)])
def test_a_step_is_marked_on_its_first_night(before: int, level: float) -> None:
    (change,) = level_changes([*speedups(before, 3.0), *speedups(9, level, seed=2)], ALONE)
    assert change.first == before


def test_every_step_of_several_is_marked() -> None:
    series = [*speedups(12, 3.0), *speedups(12, 2.8, seed=2), *speedups(12, 3.1, seed=3)]
    assert [change.first for change in level_changes(series, ALONE)] == [12, 24]


def test_what_lasts_shorter_than_a_side_is_no_level() -> None:
    series = speedups(30, 3.0)
    series[20 : 20 + MIN_SIDE - 1] = [2.0, 2.0]
    assert level_changes(series, ALONE) == []


def test_a_step_that_no_gate_would_see_is_no_mark() -> None:
    series = [3.0 + index % 7 * 1e-6 for index in range(15)] + [3.006 + index % 7 * 1e-6 for index in range(15)]
    assert level_changes(series, ALONE) == []
    series[15:] = [value * 1.002 for value in series[15:]]
    assert [change.first for change in level_changes(series, ALONE)] == [15]


@pytest.mark.parametrize("series", [1, 4, 80])
def test_the_fewest_values_are_just_enough_for_the_clearest_step(series: int) -> None:
    level = level_of_one(series)
    fewest = fewest_values(level)
    steps = [
        [index + (1000.0 if index >= length // 2 else 0.0) for index in range(length)]
        for length in (fewest, fewest - 1)
    ]
    assert level_changes(steps[1], level) == []
    assert [change.first for change in level_changes(steps[0], level)] == [fewest // 2]


@pytest.mark.parametrize(("before", "after"), [(5, 15), (12, 15), (20, 30)])
def test_the_critical_sum_is_that_of_the_exact_test(before: int, after: int) -> None:
    nights, earlier = before + after, 5
    critical = critical_sums(nights, earlier, 0.05)[before - 1, nights - 1]
    spent = 0.05 / (SPENDING * (nights + earlier) ** 2)
    enough, too_few = (
        stats.mannwhitneyu(*_sides(before, after, int(size)), method="exact").pvalue
        for size in (critical, critical - 2)
    )
    assert enough <= spent < too_few


def _sides(before: int, after: int, size: int) -> tuple[list[float], list[float]]:
    """Two sides without ties, of which the pairs that rise are `size` more than those that fall."""
    rising = (before * after + size) // 2
    below, rest = divmod(rising, after)
    first = [index - 1e3 if index < below else index + 1e3 for index in range(before)]
    if rest:
        first[below] = after - rest - 0.5
    return first, [float(index) for index in range(after)]


def test_two_long_sides_have_the_critical_sum_of_the_normal_approximation() -> None:
    nights = 60
    before = LONGEST_EXACT_SIDE + 1
    after = nights - before
    critical = critical_sums(nights, 0, 0.05)[before - 1, nights - 1]
    deviation = math.sqrt(before * after * (nights + 1) / 3)
    assert 2 * stats.norm.sf((critical - 1) / deviation) == pytest.approx(0.05 / (SPENDING * nights**2))


def test_the_sums_of_splits_are_those_of_counting_pairs() -> None:
    values = np.asarray([3.0, 1, 2, 2, 5, 4, 4, 0, 6])
    sums = split_sums(values)
    for before in range(1, len(values)):
        for last in range(before, len(values)):
            pairs = [np.sign(late - early) for early in values[:before] for late in values[before : last + 1]]
            assert sums[before - 1, last] == sum(pairs)


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "bad nights"])
def test_looking_every_night_marks_no_more_unchanged_series_than_promised(noise: str) -> None:
    draw, shape = np.random.default_rng(20260131), (500, 100)
    values = draw.standard_t(2, shape) if noise == "heavy tails" else draw.normal(size=shape)
    if noise == "bad nights":
        values *= np.where(draw.random(shape) < 0.1, 10.0, 1.0)
    marked = (np.abs(split_sums(values)) >= critical_sums(shape[1], 0, ALONE)).any(axis=(-1, -2))
    assert 0 < marked.mean() <= FALSE_MARKS


def test_a_mark_stays_as_more_nights_are_seen() -> None:
    draw = np.random.default_rng(0)
    series = [*(3 + 0.01 * (draw.normal(size=60) + np.repeat([0.0, 3.0, 1.0], 20)))]
    marks = [level_changes(series[:nights], ALONE) for nights in range(1, 61)]
    assert len(marks[-1]) >= 1
    for newest, (earlier, later) in enumerate(pairwise(marks), start=1):
        assert later[: len(earlier)] == earlier
        assert all(change.found == newest for change in later[len(earlier) :])


def test_the_nights_of_earlier_levels_are_looks_that_were_spent() -> None:
    step = [*speedups(12, 3.0), *speedups(12, 2.8, seed=2)]
    (alone,) = level_changes(step, ALONE)
    earlier, later = level_changes([*speedups(100, 4.0, seed=4), *step], ALONE)
    assert (earlier.first, later.first) == (100, 100 + alone.first)
    assert later.found > 100 + alone.found

"""On which night a level changed: what is marked, what is not, and how often chance alone is."""

import math
import random

import numpy as np
import pytest
from scipy import stats

from gpugate.commands.history.level_changes import (
    FALSE_MARKS,
    LONGEST_EXACT,
    MIN_SIDE,
    corrected_p_values,
    fewest_values,
    level_changes,
    level_of_one,
)

ALONE = level_of_one(1)


def around(level: float, nights: int, seed: int = 1) -> list[float]:
    draw = random.Random(seed)  # noqa: S311  # the same in every run of the tests
    return [level * (1 + draw.gauss(0, 0.002)) for _ in range(nights)]


@pytest.mark.parametrize("before", [8, 12, 20])
@pytest.mark.parametrize("level", [2.97, 3.03, 4.0])
def test_a_step_is_marked_on_its_first_night(before: int, level: float) -> None:
    (change,) = level_changes([*around(3.0, before), *around(level, 9, seed=2)], ALONE)
    assert change.first == before
    assert change.p_value <= ALONE


def test_every_step_of_several_is_marked() -> None:
    series = [*around(3.0, 12), *around(2.8, 12, seed=2), *around(3.1, 12, seed=3)]
    assert [change.first for change in level_changes(series, ALONE)] == [12, 24]


def test_what_lasts_shorter_than_a_side_is_no_level() -> None:
    series = around(3.0, 30)
    series[20 : 20 + MIN_SIDE - 1] = [2.0, 2.0]
    assert level_changes(series, ALONE) == []


def test_a_step_that_no_gate_would_see_is_no_mark() -> None:
    series = [3.0 + index * 1e-6 for index in range(15)] + [3.006 + index * 1e-6 for index in range(15)]
    assert level_changes(series, ALONE) == []
    series[15:] = [value * 1.002 for value in series[15:]]
    assert [change.first for change in level_changes(series, ALONE)] == [15]


def test_equal_values_have_no_level_to_change() -> None:
    assert level_changes([3.0] * 30, ALONE) == []


@pytest.mark.parametrize("series", [1, 4, 80])
def test_the_fewest_values_are_just_enough_for_the_clearest_step(series: int) -> None:
    level = level_of_one(series)
    fewest = fewest_values(level)
    steps = [
        [index + (1000.0 if index >= length // 2 else 0.0) for index in range(length)]
        for length in (fewest, fewest - 1)
    ]
    enough, too_few = (float(corrected_p_values(np.asarray(step)).min()) for step in steps)
    assert enough <= level < too_few
    assert level_changes(steps[1], level) == []
    assert [change.first for change in level_changes(steps[0], level)] == [fewest // 2]


def test_the_p_value_is_that_of_counting_arrangements() -> None:
    step = np.asarray([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    splits = len(step) - 2 * MIN_SIDE + 1
    expected = [2 / math.comb(10, split) * splits for split in range(MIN_SIDE, 10 - MIN_SIDE + 1)]
    assert corrected_p_values(step) == pytest.approx(expected)


@pytest.mark.parametrize("values", [np.linspace(0, 7, 99) % 1, np.arange(99) // 7 % 4, np.full(99, 3.0)])
def test_a_long_series_has_the_p_values_of_the_normal_approximation_at_every_split(values: np.ndarray) -> None:
    assert len(values) > LONGEST_EXACT
    splits = range(MIN_SIDE, len(values) - MIN_SIDE + 1)
    each = [stats.mannwhitneyu(values[:split], values[split:], method="asymptotic").pvalue for split in splits]
    expected = np.minimum(np.asarray(each) * len(splits), 1.0)
    np.testing.assert_allclose(corrected_p_values(values), expected, rtol=1e-9)


@pytest.mark.parametrize("nights", [LONGEST_EXACT, LONGEST_EXACT + 1, 365])
def test_a_step_of_a_long_series_is_marked_on_its_first_night(nights: int) -> None:
    series = [*around(3.0, nights - 20), *around(2.95, 20, seed=2)]
    assert [change.first for change in level_changes(series, level_of_one(80))] == [nights - 20]


def test_all_series_together_keep_the_promise() -> None:
    assert 1 - (1 - level_of_one(80)) ** 80 == pytest.approx(FALSE_MARKS)
    assert level_of_one(1) == pytest.approx(FALSE_MARKS)

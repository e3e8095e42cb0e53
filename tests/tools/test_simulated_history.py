"""Simulated nights: the level changes keep their bound on false marks, and larger steps are found more often."""

import pytest

from gpugate.commands.history.level_changes import FALSE_MARKS, level_of_one
from tools.simulated_history import NOISES, false_marks, found_steps

ALONE = level_of_one(1)


@pytest.mark.parametrize("noise", [name for name in NOISES if "correlated" not in name])
@pytest.mark.parametrize("nights", [10, 20, 100, 365])
def test_chance_alone_marks_no_more_series_than_promised(noise: str, nights: int) -> None:
    assert 0 < false_marks(NOISES[noise], nights, ALONE, series=2000) <= FALSE_MARKS


def test_what_wanders_is_marked_more_often() -> None:
    assert false_marks(NOISES["correlated with the night before, 0.5"], 20, ALONE, series=1000) > FALSE_MARKS


def test_a_larger_step_and_more_nights_are_found_more_often() -> None:
    few, many, larger = (found_steps(step, since, ALONE, series=500) for step, since in ((2.0, 3), (2.0, 7), (5.0, 3)))
    assert few < many
    assert few < larger
    assert larger > 0.8

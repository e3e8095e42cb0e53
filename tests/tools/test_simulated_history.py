"""Simulated nights: marks keep their bound however often a table is looked at, and larger steps are found sooner."""

import numpy as np
import pytest

from gpugate.commands.trends import FALSE_MARKS, level_changes, level_of_one
from tools.simulated_history import NEVER, NOISES, delays, false_tables, first_looks


@pytest.mark.parametrize("noise", [name for name in NOISES if "correlated" not in name])
def test_looking_every_night_marks_no_more_series_than_promised(noise: str) -> None:
    early, late = false_tables(NOISES[noise], 1, 500)
    assert 0 < early <= late <= FALSE_MARKS


def test_what_wanders_is_marked_more_often() -> None:
    assert false_tables(NOISES["correlated with the night before, 0.5"], 1, 500)[1] > FALSE_MARKS


def test_a_larger_step_is_found_sooner() -> None:
    small, larger = (delays(step, 80, 300) for step in (1.4, 5.0))
    assert np.median(larger) < np.median(small)
    assert np.max(larger) < NEVER


def test_the_simulated_looks_are_those_of_level_changes() -> None:
    noise = np.random.default_rng(5).normal(size=(20, 50))
    noise[:, 25:] += 2
    first = first_looks(noise, level_of_one(80))
    found = (level_changes(list(100 + one), level_of_one(80)) for one in noise)
    assert list(first) == [changes[0].found + 1 if changes else NEVER for changes in found]

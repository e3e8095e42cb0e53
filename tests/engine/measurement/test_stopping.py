"""Sampling stops for one of three reasons, and never before it has its floor of pairs."""

import pytest

from gpugate.measurement.settings import Settings
from gpugate.measurement.stopping import stop_reason

SETTINGS = Settings(half_width=0.005, min_pairs=8)
NARROW, WIDE = [0.005], [0.006]
FLAT, FALLING = [0.0100, 0.0098, 0.0101, 0.0099, 0.0099], [0.0106, 0.0104, 0.0102, 0.0101, 0.0100]


@pytest.mark.parametrize(
    ("half_widths", "pairs", "missing", "seconds_left", "expected"),
    [
        (NARROW, 8, 0, 1.0, "narrow"),
        (WIDE, 8, 0, 1.0, None),
        (NARROW, 7, 0, 1.0, None),  # below the floor nothing stops it, not even
        (NARROW, 7, 0, -1.0, None),  # the budget
        (NARROW, 8, 1, 1.0, None),  # a fresh instance is still wanted
        (NARROW, 8, 1, 0.0, "budget"),
        (NARROW, 8, 0, 0.0, "budget"),
        (FLAT, 32, 0, 1.0, "noise"),
        (FLAT, 31, 0, 1.0, None),
        (FLAT[1:], 32, 0, 1.0, None),  # too few instances to know that the noise has settled
        (FALLING, 32, 0, 1.0, None),
        (FALLING[::-1], 32, 0, 1.0, None),
        ([float("inf"), *FLAT[1:]], 32, 0, 1.0, None),
        (FLAT, 32, 1, 1.0, None),
        ([0.02, 0.01, 0.008, 0.006, 0.004], 32, 0, 1.0, "narrow"),
        ([], 8, 0, 1.0, None),
    ],
)
def test_stop_reasons(half_widths, pairs, missing, seconds_left, expected) -> None:
    assert stop_reason(half_widths, pairs, missing, seconds_left, SETTINGS) == expected


def test_an_undecided_result_gets_twice_the_time_and_half_the_width() -> None:
    longer = SETTINGS.escalated()
    assert (longer.budget_s, longer.half_width) == (2 * SETTINGS.budget_s, SETTINGS.half_width / 2)
    assert (longer.min_pairs, longer.seed) == (SETTINGS.min_pairs, SETTINGS.seed)

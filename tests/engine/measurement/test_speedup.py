"""Sampling takes more pairs of a build where they are noisy and builds dear, and stops for one of three reasons."""

import numpy as np
import pytest

from gpugate.measurement.settings import Settings
from gpugate.measurement.speedup import pairs_worth_taking, stop_reason
from gpugate.statistics.intervals import BUILD_SPREAD

SETTINGS = Settings(half_width=0.005)
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
    assert stop_reason(half_widths, pairs, missing, seconds_left, 0.005) == expected


def test_an_undecided_result_gets_twice_the_time_and_half_the_width() -> None:
    longer = SETTINGS.escalate()
    assert (longer.budget_s, longer.half_width) == (2 * SETTINGS.budget_s, SETTINGS.half_width / 2)
    assert (longer.min_builds, longer.prove) == (SETTINGS.min_builds, False)


def ratios(spread: float, builds: int = 1, offset: float = 0.0) -> list[list[float]]:
    """A hundred pairs of each build whose robust spread is about `spread`, builds `offset` apart."""
    draw = np.random.default_rng(0)
    return [list(index * offset + spread * draw.standard_normal(100)) for index in range(builds)]


@pytest.mark.parametrize(
    ("spread", "build_s", "pair_s", "least", "most"),
    [
        (BUILD_SPREAD, 1.0, 1.0, 1, 2),
        (BUILD_SPREAD, 1.0, 0.04, 4, 6),  # sqrt(25)
        (10 * BUILD_SPREAD, 1.0, 0.04, 43, 57),
        (BUILD_SPREAD / 10, 1.0, 0.04, 1, 1),
        (BUILD_SPREAD, 0.0, 1.0, 1, 1),
    ],
)
def test_noise_of_pairs_and_the_price_of_a_build_ask_for_more_pairs(spread, build_s, pair_s, least, most) -> None:
    assert least <= pairs_worth_taking(ratios(spread), build_s, pair_s) <= most


def test_what_builds_differ_by_is_not_taken_for_noise_of_pairs() -> None:
    one = pairs_worth_taking(ratios(0.001, builds=3), 1.0, 0.01)
    assert pairs_worth_taking(ratios(0.001, builds=3, offset=0.5), 1.0, 0.01) == one


def test_a_single_pair_tells_no_spread() -> None:
    assert pairs_worth_taking([[0.1], []], 1.0, 0.01) == 1

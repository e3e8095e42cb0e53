"""Tolerances and detectable slowdowns from the variation of processes, against published numbers and simulations."""

import math

import numpy as np
import pytest

from gpugate.statistics.intervals import machine_half_width
from gpugate.statistics.tolerance import (
    FLOOR,
    MIN_VARIATION_FACTOR,
    detectable_slowdown,
    log_tolerance,
    median_variance,
    variation_factor,
)
from gpugate.statistics.variation import Variation


@pytest.mark.parametrize(
    ("count", "variance", "above"),
    [
        (1, 1.0, 0.0),
        (3, 0.4487, 0.0),
        (5, 0.2868, 0.0),
        (7, 0.2104, 0.0),
        (2, 0.5, 0.2),
        (4, 0.2982, 0.14),
        (6, 0.2147, 0.1),
    ],
)
def test_the_variance_of_a_normal_median(count, variance, above) -> None:
    """Teichroew's tables of order statistics (1956)."""
    assert 0.98 * (1 + above) < median_variance(count) / variance < 1.02 * (1 + above)


@pytest.mark.parametrize(
    ("share", "times", "expected"),
    [(0.0, 1.0, FLOOR), (0.01, 1.0, math.hypot(FLOOR, 0.04)), (0.01, 1.25, math.hypot(FLOOR, 0.05))],
)
def test_a_tolerance_is_the_floor_beside_a_multiple_of_the_variation(share, times, expected) -> None:
    assert log_tolerance(Variation(share, 4), 5, checks_per_night=1, times=times) == pytest.approx(expected)


def test_more_checks_tolerate_more_and_more_recorded_processes_less() -> None:
    assert variation_factor(5, 1, 4) == MIN_VARIATION_FACTOR < variation_factor(5, 32, 4) < variation_factor(5, 64, 4)
    assert variation_factor(7, 64, 6) < variation_factor(6, 64, 5) < variation_factor(5, 64, 4)
    assert variation_factor(5, 64, 9) < variation_factor(5, 64, 4)


@pytest.mark.parametrize(("share", "allowed"), [(0.01, 0.05), (0.002, 0.01)])
def test_a_detectable_slowdown_is_detected_95_times_in_100(share, allowed) -> None:
    """A simulation of the rule of wall times: a first process that passes by its interval decides, else the middle one
    of three."""
    draw, nights, half_width = np.random.default_rng(2), 3000, machine_half_width(Variation(share, 4))
    slower = math.log1p(detectable_slowdown(Variation(share, 4), 5, allowed))
    recorded = np.median(draw.normal(0.0, share, (nights, 5)), axis=1)
    changes = draw.normal(slower, share, (nights, 3)) - recorded[:, None]
    passes = changes[:, 0] + half_width <= allowed
    red = ~passes & (np.median(changes, axis=1) > allowed)
    assert red.mean() == pytest.approx(0.95, abs=0.03)

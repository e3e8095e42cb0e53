"""From how much processes differ to what is tolerated and what is seen, against numbers worked out elsewhere."""

import math

import numpy as np
import pytest

from gpugate.tolerances import (
    MIN_CV_FACTOR,
    cv_factor,
    detectable_slowdown,
    median_variance,
    speedup_tolerance,
    tolerance,
)


@pytest.mark.parametrize(("count", "variance"), [(1, 1.0), (3, 0.4487), (5, 0.2868), (7, 0.2104), (6, 0.2868)])
def test_the_variance_of_a_normal_median(count, variance) -> None:
    """Teichroew's tables of order statistics (1956); an even count is taken for the odd one below."""
    assert median_variance(count) == pytest.approx(variance, abs=1e-4)


@pytest.mark.parametrize(
    ("cv", "processes", "expected"),
    [
        (0.001, 5, 0.01),  # the floor
        (0.0025, 5, 0.01),
        (0.01, 5, 0.04),  # four times what runs vary
        (0.01, 4, 0.05),  # too few processes to know that
        (0.02, 4, 0.08),
        (None, 1, 0.05),
        (None, 5, 0.05),
    ],
)
def test_tolerance(cv, processes, expected) -> None:
    assert tolerance(cv, processes, floor=0.01) == pytest.approx(expected)


def test_more_checks_tolerate_more_and_more_recorded_processes_less() -> None:
    assert cv_factor(5, 1) == MIN_CV_FACTOR < cv_factor(5, 32) < cv_factor(5, 64)
    assert cv_factor(7, 64) < cv_factor(5, 64)


@pytest.mark.parametrize("checks", [16, 64])
def test_a_suite_in_which_nothing_changed_alarms_as_seldom_as_is_said(checks) -> None:
    """By simulation: each check compares the middle one of 3 fresh processes with the median of 5 recorded ones."""
    draw, nights = np.random.default_rng(1), 4000
    recorded = draw.normal(1.0, 0.01, (nights, checks, 5))
    fresh = np.median(draw.normal(1.0, 0.01, (nights, checks, 3)), axis=2)
    cv = recorded.std(axis=2, ddof=1) / recorded.mean(axis=2)
    then = np.median(recorded, axis=2)
    alarms = (fresh < then * (1 - cv_factor(5, checks) * cv)).any(axis=1)
    assert 0.02 < alarms.mean() < 0.07  # 5 % is what is said


def test_a_detectable_slowdown_is_detected_as_often_as_is_said() -> None:
    draw, nights, cv, allowed = np.random.default_rng(2), 20_000, 0.01, 0.05
    slower = 1.0 / (1 + detectable_slowdown(cv, 5, allowed))
    recorded = np.median(draw.normal(1.0, cv, (nights, 5)), axis=1)
    fresh = np.median(draw.normal(slower, cv, (nights, 3)), axis=1)
    assert (fresh < recorded * (1 - allowed)).mean() == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize(
    ("cv", "sittings", "expected"), [(0.0005, 1, 0.01), (0.0005, 2, 0.01), (0.0005, 3, 0.003), (0.01, 3, 0.04)]
)
def test_what_was_recorded_over_nights_needs_no_floor_for_them(cv, sittings, expected) -> None:
    assert speedup_tolerance(cv, 5, sittings, checks=1) == pytest.approx(expected)


def test_what_cannot_be_detected_is_infinite() -> None:
    assert math.isinf(detectable_slowdown(0.3, 5, 0.9))
    assert detectable_slowdown(None, 5, 0.05) == pytest.approx(0.05 / 0.95)

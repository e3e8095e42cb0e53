"""Tolerances and detectable slowdowns from the variation of processes, against published numbers and simulations."""

import math

import numpy as np
import pytest

from gpugate.judging.processes import vote
from gpugate.judging.times import votes
from gpugate.results.verdict import Outcome
from gpugate.statistics.intervals import Estimate, machine_half_width
from gpugate.statistics.tolerance import (
    MIN_VARIATION_FACTOR,
    detectable_slowdown,
    median_variance,
    night_factor,
    shortfall_chance,
    speedup_tolerance,
    time_tolerance,
    tolerance,
    variation_factor,
)
from gpugate.statistics.variation import Variation


@pytest.mark.parametrize(
    ("count", "variance"), [(1, 1.0), (3, 0.4487), (5, 0.2868), (7, 0.2104), (2, 0.5), (4, 0.2982), (6, 0.2147)]
)
def test_the_variance_of_a_normal_median(count, variance) -> None:
    """Teichroew's tables of order statistics (1956)."""
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
    assert variation_factor(5, 1) == MIN_VARIATION_FACTOR < variation_factor(5, 32) < variation_factor(5, 64)
    assert variation_factor(7, 64) < variation_factor(6, 64) < variation_factor(5, 64)
    assert variation_factor(5, 64, degrees_of_freedom=9) < variation_factor(5, 64)


@pytest.mark.parametrize("checks", [16, 64])
def test_a_suite_in_which_nothing_changed_alarms_as_seldom_as_is_said(checks) -> None:
    """A simulation: each check compares the middle one of 3 fresh processes with the median of 5 recorded ones."""
    draw, nights = np.random.default_rng(1), 4000
    recorded = draw.normal(1.0, 0.01, (nights, checks, 5))
    fresh = np.median(draw.normal(1.0, 0.01, (nights, checks, 3)), axis=2)
    cv = recorded.std(axis=2, ddof=1) / recorded.mean(axis=2)
    then = np.median(recorded, axis=2)
    alarms = (fresh < then * (1 - variation_factor(5, checks) * cv)).any(axis=1)
    assert 0.02 < alarms.mean() < 0.07  # 5 % is what is said


@pytest.mark.parametrize("night_sd", [0.005, 0.0])
@pytest.mark.parametrize("processes_a_night", [1, 3, 5])
def test_a_baseline_that_knows_nights_alarms_as_seldom_as_is_said(processes_a_night, night_sd) -> None:
    """A simulation: the three deciding processes share their night, and so do the processes recorded on one night."""
    draw, nights, checks, recorded = np.random.default_rng(3), 4000, 16, 5
    shape = (nights, checks, recorded)
    then = draw.normal(1.0, night_sd, shape) + np.median(draw.normal(0.0, 0.001, (*shape, processes_a_night)), axis=3)
    fresh = draw.normal(1.0, night_sd, shape[:2]) + np.median(draw.normal(0.0, 0.001, (*shape[:2], 3)), axis=2)
    cv = then.std(axis=2, ddof=1) / then.mean(axis=2)
    alarms = (fresh < np.median(then, axis=2) * (1 - night_factor(recorded, checks, processes_a_night) * cv)).any(
        axis=1
    )
    assert alarms.mean() < 0.07  # 5 % is what is said


@pytest.mark.parametrize(("cv", "allowed"), [(0.01, 0.05), (0.002, 0.01)])
def test_a_detectable_slowdown_is_detected_as_often_as_is_said(cv, allowed) -> None:
    """A simulation of the whole rule: a first process that passes decides, else the middle one of three does."""
    draw, nights, of_machine = np.random.default_rng(2), 3000, machine_half_width(Variation(cv, 4))
    slower = 1.0 / (1 + detectable_slowdown(cv, 5, 1, allowed))
    recorded = np.median(draw.normal(1.0, cv, (nights, 5)), axis=1)
    attempts = draw.normal(slower, cv, (nights, 3))
    red = [_is_red(list(three), then, allowed, of_machine) for three, then in zip(attempts, recorded, strict=True)]
    assert np.mean(red) == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize("a_night", [1, 3, 5])
def test_of_nights_that_differ_by_their_processes_alone_it_is_detected_no_less_often(a_night) -> None:
    draw, nights, sd, allowed = np.random.default_rng(4), 3000, 0.004, 0.05
    recorded = np.median(draw.normal(1.0, sd, (nights, 5, a_night)), axis=2)
    between_nights = sd * math.sqrt(median_variance(a_night))
    slower = 1.0 / (1 + detectable_slowdown(between_nights, 5 * a_night, 5, allowed))
    of_machine = machine_half_width(Variation(between_nights, 4))
    attempts = draw.normal(slower, sd, (nights, 3))
    then = np.median(recorded, axis=1)
    red = [_is_red(list(three), one, allowed, of_machine) for three, one in zip(attempts, then, strict=True)]
    assert np.mean(red) > 0.93


@pytest.mark.parametrize(("processes", "a_night"), [(5, 1), (15, 3), (25, 5)])
def test_a_night_of_more_processes_is_known_better_than_what_is_asked(processes, a_night) -> None:
    """Three processes are asked: the median of five recorded ones varies less than theirs."""
    assert speedup_tolerance(0.01, processes, 5, checks_per_night=16) == pytest.approx(
        0.01 * night_factor(5, 16, a_night)
    )
    assert night_factor(5, 16, 5) > night_factor(5, 16, 3) == night_factor(5, 16, 1)


def _is_red(medians: list[float], then: float, allowed: float, half_width: float) -> bool:
    estimates = [Estimate(median, median - half_width, median + half_width) for median in medians]
    heard = estimates[:1]
    outcome = vote(votes(heard, then, allowed))
    while len(heard) < 3 and (outcome is Outcome.INCONCLUSIVE or (outcome is Outcome.REGRESSED and len(heard) == 1)):
        heard = estimates[: len(heard) + 1]
        outcome = vote(votes(heard, then, allowed))
    return outcome is Outcome.REGRESSED


@pytest.mark.parametrize(
    ("cv", "nights", "expected"),
    [
        (0.0, 1, 0.01 / 1.01),
        (0.0025, 1, 0.01 * math.hypot(1, 1 / 1.01)),  # 4 cv beside the floor
        (0.0025, 4, 0.01 * math.hypot(1, 1 / 1.01)),
        (0.0005, 5, 0.003 / 1.003),
        (0.01, 5, 0.04),
    ],
)
def test_what_was_recorded_over_nights_needs_no_floor_for_them(cv, nights, expected) -> None:
    assert speedup_tolerance(cv, 5, nights, checks_per_night=1) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cv", "nights", "slowdown"), [(0.0005, 1, 0.02), (0.0005, 5, 0.01), (0.0024, 5, 0.01), (0.1, 5, 0.67)]
)
def test_the_floor_of_a_time_is_its_own_variation(cv, nights, slowdown) -> None:
    allowed = time_tolerance(cv, 5, nights, checks_per_night=1)
    assert allowed / (1 - allowed) == pytest.approx(slowdown, rel=0.01)


def test_a_slowdown_as_large_as_the_floor_is_not_let_through() -> None:
    floor = speedup_tolerance(0.0, 5, 1, checks_per_night=1)
    assert 1 / 1.01 <= 1 - floor < 1 / 1.0099


@pytest.mark.parametrize(
    ("promised", "variation", "processes", "chance"),
    [(3.0, 0.1, 5, 0.5), (2.0, 0.1, 5, 0.0086), (2.0, 0.0, 5, 0.0), (3.1, 0.0, 5, 1.0)],
)
def test_the_chance_of_a_shortfall_where_nothing_changed(promised, variation, processes, chance) -> None:
    known = Variation(variation, processes - 1)
    assert shortfall_chance(3.0, promised, known, processes) == pytest.approx(chance, abs=2e-3)


def test_a_shortfall_is_as_rare_as_is_computed() -> None:
    """A simulation: the middle one of three processes against a promise, with the variation estimated from five."""
    draw, promised = np.random.default_rng(7), 2.4
    recorded = draw.normal(3.0, 0.3, (40_000, 5))
    fresh = np.median(draw.normal(3.0, 0.3, (40_000, 3)), axis=1)
    then, cv = np.median(recorded, axis=1), recorded.std(axis=1, ddof=1) / recorded.mean(axis=1)
    known = [Variation(spread, 4) for spread in cv[:2000]]
    chances = [shortfall_chance(one, promised, spread, 5) for one, spread in zip(then[:2000], known, strict=True)]
    # Averaged over records, the computed chance errs on the careful side: the record's own error counts too.
    assert (fresh < promised).mean() < np.mean(chances) < 0.1


def test_what_cannot_be_detected_is_infinite() -> None:
    assert math.isinf(detectable_slowdown(0.3, 5, 1, 0.9))
    assert detectable_slowdown(None, 5, 1, 0.05) == pytest.approx(0.05 / 0.95)


def test_over_nights_a_detectable_slowdown_rests_on_the_number_of_nights() -> None:
    fall = 0.02 + 1.6449 * 0.01 * math.sqrt(0.4487 / 0.2868 + 0.2868)  # 3 of 5 processes a night; 5 nights
    assert detectable_slowdown(0.01, 25, 5, 0.02) == pytest.approx(fall / (1 - fall), rel=1e-4)

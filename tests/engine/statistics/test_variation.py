"""Variations shrunk over cases, and the tolerances that follow, against published numbers and simulations."""

import math

import numpy as np
import pytest

from gpugate.statistics.intervals import PRIOR_WORTH, UNKNOWN_BUILD_SPREAD
from gpugate.statistics.variation import (
    MIN_CASES,
    MIN_VARIATION_FACTOR,
    SLOPE,
    Variation,
    detectable_slowdown,
    fit_control,
    log_tolerance,
    median_variance,
    shrink_all,
)

CASES, PROCESSES = 40, 6
DEGREES = PROCESSES - 1
Observed = tuple[Variation, float]


def observed(share: float, pair_noise: float = 0.01) -> Observed:
    return Variation(share, DEGREES), pair_noise


def draw_cases(draw: np.random.Generator, degrees: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    """Draws the standard deviation and the noise of the pairs of CASES, as a prior of so many degrees has them."""
    noise = 0.01 * np.exp(draw.normal(0, 1, CASES))
    return noise * np.sqrt(degrees / draw.chisquare(degrees, CASES)), noise


def record(draw: np.random.Generator, sd: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, list[Observed]]:
    values = draw.normal(1.0, sd[:, None], (CASES, PROCESSES))
    return values, [observed(*of_case) for of_case in zip(values.std(axis=1, ddof=1), noise, strict=True)]


def predict(cases: list[Observed], pair_noise: float) -> float:
    """The predicted variance of a case with this noise, which is the posterior variance of one that does not vary."""
    *_, found = shrink_all([*cases, observed(0.0, pair_noise)])
    assert found is not None
    return found.share**2 * found.degrees_of_freedom / PRIOR_WORTH


def test_the_prediction_follows_the_noise_of_cases_that_scatter_as_the_prior_says() -> None:
    draw = np.random.default_rng(1)
    suites = [record(draw, *draw_cases(draw, PRIOR_WORTH))[1] for _ in range(200)]
    assert np.median([predict(one, 0.01) for one in suites]) == pytest.approx(1e-4, rel=0.1)
    assert np.median([predict(one, 0.02) / predict(one, 0.01) for one in suites]) == pytest.approx(4.0, rel=0.05)


def test_a_posterior_variance_is_the_mean_of_both_weighted_by_their_degrees() -> None:
    cases = record(np.random.default_rng(3), *draw_cases(np.random.default_rng(3)))[1]
    found, own = shrink_all(cases)[0], cases[0][0].share
    assert found is not None
    predicted = predict(cases, cases[0][1])
    assert found.share**2 == pytest.approx((PRIOR_WORTH * predicted + DEGREES * own**2) / (PRIOR_WORTH + DEGREES))
    assert found.degrees_of_freedom == PRIOR_WORTH + DEGREES


def test_few_cases_and_cases_without_any_variation_give_no_prediction() -> None:
    cases = record(np.random.default_rng(3), *draw_cases(np.random.default_rng(3)))[1]
    assert fit_control([0.0, 0.1], [0.0, 0.1]) is None
    assert set(shrink_all([*cases[: MIN_CASES - 1], None, observed(0.0), observed(0.01, 0.0)])) == {None}
    *found, absent = shrink_all([*cases[:MIN_CASES], observed(0.001, 0.0), None])
    assert (None in found, absent) == (False, None)


def test_a_suite_alarms_as_seldom_with_shrunk_variations_as_is_said() -> None:
    """A simulation: the middle one of 3 processes against the median of 6, while one case varies by five times what
    its pairs predict. The tolerances of that case and of the suite stay honest."""
    draw, suites = np.random.default_rng(5), 600
    alarms = np.zeros((suites, CASES), dtype=bool)
    for suite in range(suites):
        sd, noise = draw_cases(draw)
        sd[0] = 5 * noise[0]
        values, cases = record(draw, sd, noise)
        shrunk = [one for one in shrink_all(cases) if one is not None]
        fresh = np.median(draw.normal(1.0, sd[:, None], (CASES, 3)), axis=1)
        allowed = [log_tolerance(one, PROCESSES, CASES) for one in shrunk]
        alarms[suite] = fresh < np.median(values, axis=1) * (1 - np.array(allowed))
    # At the 5 % that are promised, 17 of 600 suites or fewer would alarm with a chance of 1 %.
    assert 0.01 < alarms.any(axis=1).mean() <= 17 / suites
    assert alarms[:, 0].mean() < 0.02


def test_the_variation_beside_a_control_is_that_of_what_it_leaves() -> None:
    draw = np.random.default_rng(6)
    found = []
    for _ in range(400):
        reference = draw.normal(0.0, 0.05, 8)
        found.append(fit_control((0.8 * reference + draw.normal(0.0, 0.01, 8)).tolist(), reference.tolist()))
    variances = [one.variation.share**2 for one in found if one is not None]
    assert math.sqrt(np.mean(variances)) == pytest.approx(0.01, rel=0.1)
    assert all(6 <= one.variation.degrees_of_freedom < 7 for one in found if one is not None)


@pytest.mark.parametrize(
    ("times", "references", "slope"),
    [
        ([0.0, 0.1, 0.2], [0.0, 0.0, 0.0], SLOPE),  # the reference shows nothing
        ([0.0, 0.3, 0.6], [0.0, 0.1, 0.2], 1.0),  # no side moves by more than the machine
        ([0.0, -0.1, -0.2], [0.0, 0.1, 0.2], 0.0),
        ([0.0, 0.1, 0.0, -0.05], [0.0, 0.1, 0.1, 0.0], 0.707483),  # 0.75 by least squares, which is known too badly
    ],
)
def test_a_slope_lies_from_0_to_1_and_is_shrunk(times: list[float], references: list[float], slope: float) -> None:
    found = fit_control(times, references)
    assert found is not None
    assert found.slope == pytest.approx(slope)


@pytest.mark.parametrize(
    ("count", "variance", "above"), [(1, 1.0, 0.0), (3, 0.4487, 0.0), (5, 0.2868, 0.0), (2, 0.5, 0.2), (6, 0.2147, 0.1)]
)
def test_the_variance_of_a_normal_median(count: int, variance: float, above: float) -> None:
    """Teichroew's tables of order statistics (1956)."""
    assert 0.98 * (1 + above) < median_variance(count) / variance < 1.02 * (1 + above)


def test_a_tolerance_is_a_floor_beside_a_multiple_of_the_variation() -> None:
    """More checks tolerate more, and more recorded processes less."""
    assert log_tolerance(Variation(0.0, 4), 5, 1) == UNKNOWN_BUILD_SPREAD
    known = [Variation(1.0, degrees) for degrees in (4, 5, 6)]
    least, few, many = (log_tolerance(known[0], 5, checks, times=1.25) for checks in (1, 32, 64))
    assert 1.25 * MIN_VARIATION_FACTOR < least < few < many
    assert log_tolerance(known[2], 7, 64) < log_tolerance(known[1], 6, 64) < log_tolerance(known[0], 5, 64)


@pytest.mark.parametrize(("share", "allowed"), [(0.01, 0.05), (0.002, 0.01)])
def test_a_detectable_slowdown_is_detected_95_times_in_100(share: float, allowed: float) -> None:
    """A simulation of the rule of wall times: a first process that passes by its interval decides, else the middle one
    of three."""
    draw, nights, known = np.random.default_rng(2), 3000, Variation(share, 4)
    slower = math.log1p(detectable_slowdown(known, 5, allowed))
    recorded = np.median(draw.normal(0.0, share, (nights, 5)), axis=1)
    changes = draw.normal(slower, share, (nights, 3)) - recorded[:, None]
    passes = changes[:, 0] + known.half_width <= allowed
    red = ~passes & (np.median(changes, axis=1) > allowed)
    assert red.mean() == pytest.approx(0.95, abs=0.03)

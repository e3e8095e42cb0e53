"""The page of intervals is of the stored trials, and a build outside the interval of those before it is counted."""

import math

import pytest

from gpugate.statistics.intervals import BUILD_SPREAD
from tests.support.stored_runs import timed_build
from tools.interval_coverage import PAGE, list_rows, predict_next


def test_the_page_has_the_rows_of_the_stored_trials() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"| {' | '.join(row)} |" in page for row in list_rows()), "run python -m tools.interval_coverage"


@pytest.mark.parametrize(("times", "wrong"), [(9.5, False), (10.2, True)])
def test_a_build_is_wrong_beyond_the_interval_and_its_own_variation(times: float, wrong: bool) -> None:
    """Of one build whose pairs agree, the half-width is t(2) x BUILD_SPREAD, 6.96 times, and the next one's 9.85."""
    found, half_width = predict_next(
        [timed_build(speedup, 1.0) for speedup in (2.0, 2.0 * math.exp(times * BUILD_SPREAD))], 1
    )
    assert found is wrong
    assert half_width == pytest.approx(6.9646 * BUILD_SPREAD, rel=1e-3)

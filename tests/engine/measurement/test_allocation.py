"""More pairs of one build where pairs are noisy and builds dear; the next build where they are not."""

import numpy as np
import pytest

from gpugate.measurement.allocation import BUILD_SPREAD, pairs_worth_taking


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

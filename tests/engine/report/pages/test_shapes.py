"""Places on a scale: its middle, its ends, what is beyond them, and its ticks."""

from __future__ import annotations

import pytest

from gpugate.report.pages.rendering import Scale, Strip, reach_of


def strip(value: float, allowed: float | None = None, **changed: object) -> Strip:
    return Strip(value, value - 0.01, value + 0.01, allowed, None, "words", **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(("share", "place"), [(0.0, 50), (0.2, 98), (-0.2, 2), (0.05, 74), (-9.0, 2)])
def test_a_share_has_its_place_and_one_beyond_the_scale_stands_at_its_end(share: float, place: float) -> None:
    assert Scale(0.2).place(share) == pytest.approx(place)
    assert Scale(0.2).is_beyond(share) is (abs(share) > 0.2)


def test_the_reach_contains_the_given_share_of_the_strips_whole() -> None:
    strips = [strip(0.0, 0.03)] * 9 + [strip(0.7)]
    assert reach_of(strips) == 1.0
    assert reach_of(strips, covered=0.9) == 0.05
    assert reach_of(strips[-2:], covered=0.6) == 1.0
    assert reach_of(strips, most=0.5) == 0.5
    assert reach_of([]) == 0.02


def test_the_detectable_slowdown_is_on_the_bad_side() -> None:
    assert Strip(0, 0, 0, None, 1.0, "").slowdown == -0.5  # of the speedup, which halves
    assert Strip(0, 0, 0, None, 1.0, "", less_is_better=True).slowdown == 1.0
    assert strip(0.0).slowdown is None

"""Whose word counts of several processes, and how that is said."""

import pytest

from gpugate.judging.processes import decider, disputed, elsewhere, predicate, voted
from gpugate.results.verdict import Outcome

PASS, IMPROVED = Outcome.PASS, Outcome.IMPROVED
REGRESSED, INCONCLUSIVE = Outcome.REGRESSED, Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("outcomes", "expected", "is_disputed"),
    [
        ([REGRESSED], REGRESSED, False),
        ([INCONCLUSIVE], INCONCLUSIVE, False),
        ([REGRESSED, REGRESSED], REGRESSED, False),
        ([REGRESSED, PASS], INCONCLUSIVE, True),
        ([IMPROVED, REGRESSED], INCONCLUSIVE, True),
        ([INCONCLUSIVE, PASS], INCONCLUSIVE, True),
        ([INCONCLUSIVE, INCONCLUSIVE], INCONCLUSIVE, False),
        ([IMPROVED, PASS], PASS, False),
        ([PASS, REGRESSED, PASS], PASS, False),
        ([PASS, REGRESSED, INCONCLUSIVE], INCONCLUSIVE, False),
        ([REGRESSED, PASS, REGRESSED], REGRESSED, False),
        ([REGRESSED, IMPROVED, PASS], PASS, False),
        ([REGRESSED, PASS, REGRESSED, PASS], INCONCLUSIVE, True),
    ],
)
def test_the_middle_one_of_several_processes_decides(outcomes, expected, is_disputed) -> None:
    assert (voted(outcomes), disputed(outcomes)) == (expected, is_disputed)


def test_who_decides_is_named() -> None:
    assert [decider(count) for count in (2, 3, 4)] == ["both", "the middle one of 3", "the middle two of 4"]
    assert [predicate(REGRESSED, count) for count in (1, 2, 3)] == [
        "is below",
        "both are below",
        "the middle one of 3 is below",
    ]
    assert predicate(INCONCLUSIVE, 2, is_disputed=True) == "they disagree about"


def test_what_others_measured_is_listed() -> None:
    assert [elsewhere(values) for values in ((), ("2x",), ("2x", "3x"))] == [
        "",
        ", in a fresh process 2x",
        ", in fresh processes 2x and 3x",
    ]

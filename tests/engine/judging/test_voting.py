"""The common outcome of several processes."""

import pytest

from gpugate.judging.processes import is_disputed, vote
from gpugate.results.verdict import Outcome

PASS, IMPROVED = Outcome.PASS, Outcome.IMPROVED
REGRESSED, INCONCLUSIVE = Outcome.REGRESSED, Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("outcomes", "expected", "dispute"),
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
def test_the_middle_one_of_several_processes_decides(outcomes, expected, dispute) -> None:
    assert (vote(outcomes), is_disputed(outcomes)) == (expected, dispute)

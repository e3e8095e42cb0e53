"""The order of verdicts, by which a report, a page and a failure of pytest name the same one first."""

import pytest

from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.verdict import Check, Outcome, Verdict, order_verdicts


@pytest.mark.parametrize(
    ("wall", "outcome", "expected"),
    [
        (ReasonCode.SLOWER_THAN_RECORD, Outcome.REGRESSED, ["counters", "throughput", "speedup"]),
        (ReasonCode.CODE_SLOWER, Outcome.REGRESSED, ["throughput", "counters", "speedup"]),  # a duet decided
        (ReasonCode.SLOWER_THAN_RECORD, Outcome.UNDECIDED, ["counters", "speedup", "throughput"]),
    ],
)
def test_the_wall_time_stands_behind_equally_severe_verdicts(
    wall: ReasonCode, outcome: Outcome, expected: list[Check]
) -> None:
    found = [
        Verdict("speedup", "net/fast/cpu", Outcome.UNDECIDED),
        Verdict("throughput", "net/fast/cpu", outcome, (Reason(wall),)),
        Verdict("counters", "net/fast/cpu", Outcome.REGRESSED),
    ]
    assert [one.check for one in order_verdicts(found)] == expected

"""The cases that moved since the last run, in words."""

from dataclasses import replace
from datetime import datetime, timezone

from gpugate.report.moves import MOST_MOVED, describe_moves
from gpugate.results.run import CaseNight, Night, Provenance
from tests.engine.store.test_database import night as any_night

CASE = "tiny/fused/cuda"


def case_night(speedup: float, optimized_ms: float = 10.0, case_id: str = CASE) -> tuple[str, CaseNight]:
    """A case by its id, whose intervals are 1 % wide on either side."""
    values = {"speedup": speedup, "optimized_ms": optimized_ms, "reference_ms": speedup * optimized_ms}
    return case_id, CaseNight(None, {name: (one, 0.99 * one, 1.01 * one) for name, one in values.items()})


def night(*cases: tuple[str, CaseNight], **provenance: str) -> Night:
    code = Provenance(commit="1a2b3c4d5e6f7890", branch="main", **provenance)
    started = datetime(2030, 1, 2, 3, 4, tzinfo=timezone.utc)
    return replace(any_night(), started=started, provenance=code, cases=dict(cases))


def test_a_case_that_moved_has_both_values_and_the_commit() -> None:
    lines = describe_moves(
        night(case_night(3.0), case_night(2.0, case_id="b")), night(case_night(2.7, 11.0), case_night(2.0, case_id="b"))
    )
    assert lines == [
        "since the last run here, 2030-01-02 03:04 of 1a2b3c4d5e6f on main:",
        f"  {CASE}: speedup 3.00x -> 2.70x (-10.0 %), per step 10.00 ms -> 11.00 ms (+10.0 %), outside its noise",
        "  1 case inside its noise",
    ]


def test_a_time_that_moved_as_the_reference_did_says_so() -> None:
    (_, line) = describe_moves(night(case_night(3.0)), night(case_night(3.0, 12.0)))
    words = "per step 10.00 ms -> 12.00 ms (+20.0 %), outside its noise; the reference's time moved about as much"
    assert line == f"  {CASE}: {words}"


def test_the_furthest_come_first_and_the_others_are_counted() -> None:
    ids = [f"tiny/{number}/cuda" for number in range(MOST_MOVED + 4)]
    before = night(*(case_night(3.0, case_id=name) for name in ids[:-1]))
    moved = [case_night(3.0 - 0.1 * number, case_id=name) for number, name in enumerate(ids)]
    lines = describe_moves(before, night(*moved))
    assert [line.split(":")[0].strip() for line in lines[1:-1]] == ids[-2 : -2 - MOST_MOVED : -1]
    assert lines[-1] == (
        "  1 case inside its noise; 2 cases moved less far (gpugate history has all); 1 case not measured then"
    )


def test_runs_without_a_common_case_are_not_compared_and_code_may_be_unknown_or_not_committed() -> None:
    assert describe_moves(night(case_night(3.0)), night(case_night(3.0, case_id="b"))) == []
    old = replace(night(case_night(3.0)), provenance=Provenance())
    assert describe_moves(old, night(case_night(3.0)))[0].startswith(
        "since the last run here, 2030-01-02 03:04 of an unknown"
    )
    (line,) = describe_moves(night(case_night(3.0), changes="abc"), night(case_night(3.0)))
    assert " of 1a2b3c4d5e6f+ on main: " in line

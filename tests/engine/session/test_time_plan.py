"""The time of each case where all cases of a session share it, for sampling and for doubt; made-up times alone."""

import pytest

from gpugate.session.time_plan import (
    CASE_DOUBT_S,
    LAST_START_S,
    LEAST_S,
    MOST_S,
    OVERHEAD_S,
    PLANNED_S,
    START_S,
    DoubtTime,
    share_time,
)
from gpugate.statistics.policy import DECIDING_PROCESSES


def test_few_cases_get_the_time_of_a_gate_and_many_share_what_is_there() -> None:
    assert [share_time(cases) for cases in (0, 1, 20, 500)] == [MOST_S, MOST_S, PLANNED_S / 20 - OVERHEAD_S, LEAST_S]


@pytest.mark.parametrize(
    ("begun", "elapsed_s", "more_s", "affords"),
    [(1, 3.0, 2.0, True), (1, 3.0, 3.0, False), (10, 40.0, 12.0, True), (10, 50.0, 3.0, False), (20, 90.0, 14.0, True)],
)
def test_a_case_takes_more_pairs_from_what_the_cases_before_left_and_not_from_those_after(
    begun: int, elapsed_s: float, more_s: float, affords: bool
) -> None:
    assert DoubtTime(20, begun).affords_pairs(more_s, elapsed_s) == affords  # a share of 5.2 s each


def test_on_loaded_cores_cases_beyond_two_minutes_are_left_out_with_the_next_step() -> None:
    time = DoubtTime(3, end_s=LAST_START_S)
    assert time.refuse_case(LAST_START_S - 1.0) is None
    said = "the 120 s of a run without --perf-budget were over: --perf-budget 1.8 measures all, -k selects"
    assert time.refuse_case(LAST_START_S) == said


@pytest.mark.parametrize(
    ("cases", "begun", "elapsed_s", "words"),
    [
        (1, 1, 5.0, ""),
        (19, 1, 5.0, "case 1 of 19"),
        (19, 3, 25.0, "case 3 of 19, about 95 s left"),
        (4, 3, 25.0, "case 3 of 4, about 15 s left"),
    ],
)
def test_the_time_that_is_left_is_estimated_by_the_cases_before(
    cases: int, begun: int, elapsed_s: float, words: str
) -> None:
    assert DoubtTime(cases, begun, end_s=LAST_START_S).describe_left(elapsed_s) == words


@pytest.mark.parametrize(
    ("cases", "begun", "spent_s", "of_case_s", "elapsed_s", "left_s"),
    [
        (1, 1, 0.0, 0.0, 6.0, CASE_DOUBT_S),  # a gate of one case is no night
        (1, 1, 45.0, 45.0, 51.0, CASE_DOUBT_S - 45.0),
        (100, 1, 0.0, 0.0, 12.0, CASE_DOUBT_S),  # of 400 s
        (3, 2, CASE_DOUBT_S + 10.0, 0.0, 106.0, CASE_DOUBT_S - 10.0),  # few cases have two minutes
        (100, 50, 380.0, 0.0, 980.0, 20.0),
        (100, 100, 390.0, 10.0, 1590.0, 10.0),  # a quarter of the whole night
        (100, 50, 410.0, 0.0, 1010.0, -10.0),
    ],
)
def test_doubt_takes_a_quarter_of_the_night_and_a_minute_of_a_case(
    cases: int, begun: int, spent_s: float, of_case_s: float, elapsed_s: float, left_s: float
) -> None:
    doubt = DoubtTime(cases, begun, spent_s, of_case_s)
    assert doubt.find_left_s(elapsed_s) == pytest.approx(left_s)


def test_a_case_whose_source_changed_may_use_all_that_the_night_has_and_its_duet_leaves_half() -> None:
    doubt = DoubtTime(100)
    doubt.begin_case(has_changed=True)
    assert doubt.find_left_s(12.0) == pytest.approx(400.0)
    assert doubt.find_duet_s(12.0, 4.0) == pytest.approx(200.0)
    doubt.begin_case(has_changed=False)
    assert doubt.find_left_s(24.0) == doubt.find_duet_s(24.0, 4.0) == CASE_DOUBT_S
    assert DoubtTime(1, begun=1).find_duet_s(6.0, 4.0) == CASE_DOUBT_S


@pytest.mark.parametrize(("left_s", "duet_s"), [(120.0, 60.0), (70.0, 35.0), (40.0, 27.0), (20.0, 20.0), (-5.0, -5.0)])
def test_a_duet_has_the_time_of_the_processes_that_a_change_needs(left_s: float, duet_s: float) -> None:
    """It has half of what is left, also that of the last case: other times of the case may need the rest."""
    doubt = DoubtTime(4, begun=4, spent_s=2 * CASE_DOUBT_S - left_s)
    assert doubt.find_duet_s(30.0 + doubt.spent_s, 4.0) == pytest.approx(duet_s)


def test_the_first_process_of_a_case_may_take_longer_than_its_time() -> None:
    doubt = DoubtTime(1, begun=1)
    assert doubt.affords(2 * CASE_DOUBT_S, CASE_DOUBT_S)
    assert doubt.affords(CASE_DOUBT_S - 20.0 - START_S, CASE_DOUBT_S - 20.0)
    assert not doubt.affords(CASE_DOUBT_S - 20.0, CASE_DOUBT_S - 20.0)


def test_cases_that_were_left_out_are_counted_and_named_in_one_line() -> None:
    doubt = DoubtTime(9)
    assert doubt.describe() == []
    for name in "abcdefa":
        assert doubt.leave_out(name).endswith("and gpugate compare has no time limit")
    (line,) = doubt.describe()
    assert line.startswith("without more processes or duets: 6 cases (a, b, c, d, e and 1 more)")


@pytest.mark.parametrize(
    ("measured_s", "left_s", "count"), [(4.0, 60.0, 3), (12.0, 60.0, 1), (30.0, 60.0, 1), (0.0, 60.0, 8)]
)
def test_as_many_duets_share_processes_as_fit_in_those_that_a_change_needs(
    measured_s: float, left_s: float, count: int
) -> None:
    """Each process has its start besides: with two of the three no change can be decided."""
    assert DoubtTime(9).count_duets(measured_s, left_s) == count
    assert count == 1 or DECIDING_PROCESSES * (START_S + count * measured_s) <= left_s

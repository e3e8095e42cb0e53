"""The page of the recorded cases' sharpness is that of the records and of the rules as they are."""

from dataclasses import replace

import numpy as np
import pytest

from tools import simulated_nights as nights
from tools.sharpness import HEAD, PAGE, cases, of_cases

PROCESSES = 594  # recorded


def test_the_page_is_up_to_date() -> None:
    """But for the simulated nights, which take minutes."""
    page = PAGE.read_text(encoding="utf-8")
    assert page.startswith(HEAD), "run python -m tools.sharpness"
    assert page.endswith(of_cases(cases())), "run python -m tools.sharpness"


def test_the_sharpest_case_is_first_and_either_check_may_catch_a_slowdown() -> None:
    found = cases()
    assert [one.detectable for one in found] == sorted(one.detectable for one in found)
    assert any(one.by_time < one.by_speedup for one in found)
    assert any(one.by_speedup < one.by_time for one in found)


@pytest.fixture(scope="module")
def suite() -> list[nights.Case]:
    return nights.cases()


def test_every_recorded_process_is_one_of_the_simulated_suite(suite) -> None:
    assert len(suite) == len(nights.entries())
    assert sum(len(case.counted) + len(case.left_out) for case in suite) == PROCESSES
    without = nights.cases(without=0)
    assert [len(case.raw) for case in without] == [len(case.raw) - 1 for case in suite]


def test_the_records_and_not_the_simulation_catch_a_slowdown(suite) -> None:
    """The sharpest case alarms on no night at its recorded speed, and on each one with a step 5 % slower."""
    sharp = [(case, nights.as_recorded(case)) for case in suite if case.case_id == "resnet50-inference/fp16/cuda"]
    for slowdown, red in ((0.0, False), (nights.SLOWDOWN, True)):
        found = nights.red_nights(sharp, nights.no_loan, 30, np.random.default_rng(1), slowdown)
        assert found.tolist() == [[red]] * 30


def test_a_loan_that_moves_a_case_beyond_its_tolerance_is_an_alarm(suite) -> None:
    sharp = [(case, nights.as_recorded(case)) for case in suite if case.case_id == "resnet50-inference/fp16/cuda"]
    shares = [
        nights.red_nights(sharp, lambda _, sd=sd: sd, 200, np.random.default_rng(2)).mean() for sd in (0.002, 0.014)
    ]
    assert shares[0] <= 0.01
    assert 0.1 < shares[1] < 0.4  # of a normal distribution, the share beyond 1.1 to 1.2 % of sd 1.4 %


def test_a_process_between_disturbed_ones_decides_and_disturbed_ones_alone_hide_nothing(suite) -> None:
    case = next(case for case in suite if case.case_id == "resnet50-inference-batch1/channels-last-fp16/cuda")
    usual = nights._of_machine(case, case.processes[case.counted[0]])
    slower = replace(usual, optimized_ms=nights._scaled(usual.optimized_ms, 1.15))  # within its tolerance of 31 %
    fine, disturbed = nights.Drawn(usual, disturbed=False), nights.Drawn(usual, disturbed=True)
    hidden = nights.Drawn(slower, disturbed=True)
    assert not nights.is_red(case, [hidden, fine])
    assert not nights.is_red(case, [disturbed] * nights.MOST_PROCESSES)
    assert nights.is_red(case, [hidden] * nights.MOST_PROCESSES)


def test_more_pairs_make_a_duet_sharper(suite) -> None:
    few, many = (nights.duets(suite[:6], pairs, builds=8) for pairs in (32, 128))
    assert few.caught <= many.caught
    assert (few.cases, few.alarms) == (6, 0)

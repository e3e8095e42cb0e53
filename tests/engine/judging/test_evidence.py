"""The numbers that the rules decide by: the change of a time, what is tolerated, and the processes that count."""

from dataclasses import replace

import pytest

from gpugate.judging.evidence import gather
from gpugate.results.case import CaseResult, Confirmation, Promise
from gpugate.results.reason import ReasonCode
from gpugate.results.run import Mode
from gpugate.results.summary import History
from gpugate.workload import Size
from tests.support.judged_cases import CASE_ID, LOOSE, RECORDED, case, measured, record


def change(optimized_ms: float, reference_ms: float, then: History = RECORDED) -> float:
    wall = gather(case(measured(optimized_ms, reference_ms), remembered=record(then)), Mode.GATE).wall
    assert wall is not None
    return wall.median - 1


@pytest.mark.parametrize(
    ("optimized_ms", "reference_ms", "expected"),
    [
        (10.0, 30.0, 0.0),
        (11.0, 30.0, 0.1),
        (11.0, 33.0, 1.1 / 1.1**0.5 - 1),  # the machine is slower, by as much as the reference shows
        (11.0, 45.0, 0.0),  # a longer step is no gain, however slow its reference is
        (10.0, 20.0, 0.0),  # a step that takes no longer is not slower, however fast its reference is
        (9.0, 30.0, -0.1),
        (9.0, 27.0, 0.9 / 0.9**0.5 - 1),
    ],
)
def test_the_reference_explains_a_part_of_a_wall_time(
    optimized_ms: float, reference_ms: float, expected: float
) -> None:
    assert change(optimized_ms, reference_ms) == pytest.approx(expected)


def test_a_record_of_an_older_run_has_no_control_and_the_middle_process_decides() -> None:
    assert change(11.0, 33.0, replace(RECORDED, control=None)) == pytest.approx(0.1)
    two = gather(case(measured(10.0), measured(11.0)), Mode.GATE)
    assert two.wall is not None
    assert two.speedup is not None
    assert (two.wall.low, two.wall.median) == pytest.approx((1.0, 1.1))  # the worse one of two
    assert (two.speedup.low, two.speedup.high) == pytest.approx((30 / 11, 3.0))


@pytest.mark.parametrize(
    ("recorded", "spread", "minimum", "allowed"),
    [
        (3.0, 0.01, 2.9, 0.0073),  # the record may fall below its promise by chance
        (3.0, 0.01, 1.5, 0.0),
        (2.8, 0.01, 2.9, 0.0),  # the record itself is below
        (3.0, 0.0, 2.99, 0.0066),
        (3.0, 0.5, 1.5, 1 / 3),  # a promise of a gain is kept by no loss
    ],
)
def test_a_speedup_may_fall_short_of_its_promise_by_what_the_record_allows(
    recorded: float, spread: float, minimum: float, allowed: float
) -> None:
    then = record(replace(RECORDED, speedup=recorded, speedup_cv=spread))
    found = gather(case(measured(), promise=Promise(minimum, LOOSE, None), remembered=then), Mode.GATE)
    assert found.allowed == pytest.approx(allowed, abs=2e-4)


def test_a_process_with_a_slowed_reference_or_a_problem_does_not_count_beside_another_one() -> None:
    slowed = replace(measured(reference_ms=90.0), reference_slowdown=3.0)
    beside = gather(case(slowed, measured()), Mode.GATE)
    assert ([one.reference_ms.median for one in beside.timed], beside.slowed) == ([30.0], None)
    alone = gather(case(slowed, slowed), Mode.GATE)
    assert (len(alone.timed), alone.slowed and alone.slowed.code) == (2, ReasonCode.REFERENCE_SLOWED)
    found = gather(case(measured(), Confirmation(measured(20.0), "the copy ran at 60 %")), Mode.GATE)
    assert (len(found.result.processes), found.failures) == (1, ("the copy ran at 60 %",))


def test_a_case_that_was_not_measured_has_no_evidence() -> None:
    with pytest.raises(ValueError, match="net/fast/cuda was not measured: there is nothing to decide"):
        gather(CaseResult(CASE_ID, "net", "fast", "baseline", Size(1, 0, 0)), Mode.GATE)

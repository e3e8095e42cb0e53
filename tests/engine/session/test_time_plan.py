"""The time of each case where all cases of a session share it; made-up times alone."""

from types import SimpleNamespace

import pytest

from gpugate.measurement.settings import Settings
from gpugate.results.run import Mode
from gpugate.session.opening import _plan_time
from gpugate.session.time_plan import FEWEST_PAIRS, FIRST_OVERHEAD_S, LEAST_S, MOST_S, PLANNED_S, TimePlan

SETTINGS = Settings(budget_s=60.0)


def test_few_cases_get_the_time_of_a_gate_and_many_share_what_is_there() -> None:
    assert TimePlan(1).plan(SETTINGS, 0.0).budget_s == MOST_S == Settings.budget_s
    share_s = PLANNED_S / 20
    assert TimePlan(20).plan(SETTINGS, 0.0).budget_s == share_s - FIRST_OVERHEAD_S
    assert TimePlan(500).plan(SETTINGS, 0.0).budget_s == LEAST_S
    assert TimePlan(20).plan(SETTINGS, 0.0).min_pairs == FEWEST_PAIRS


def test_a_case_gets_what_the_ones_before_it_left() -> None:
    plan = TimePlan(20)
    assert plan.plan(SETTINGS, 0.0).budget_s == PLANNED_S / 20 - FIRST_OVERHEAD_S
    plan.budget_s = 2.0
    plan.end_case(took_s=5.0)  # 3 s beside its sampling
    assert plan.overhead_s == 3.0
    assert plan.plan(SETTINGS, 5.0).budget_s == (PLANNED_S - 5.0) / 19 - 3.0
    assert plan.plan(SETTINGS, PLANNED_S + 10).budget_s == LEAST_S


def test_one_case_that_compiles_for_long_takes_no_time_from_the_others() -> None:
    plan = TimePlan(20, overheads_s=[20.0, 3.0, 2.0])
    assert plan.overhead_s == 3.0


def test_more_pairs_are_for_a_session_that_has_the_time() -> None:
    plan = TimePlan(10)
    spare_s = PLANNED_S - 9 * (FIRST_OVERHEAD_S + LEAST_S)
    assert plan.affords(spare_s, 0.0)
    assert not plan.affords(spare_s + 0.1, 0.0)
    assert not plan.affords(10.0, PLANNED_S)


@pytest.mark.parametrize(
    ("kind", "mode", "given", "planned"),
    [
        ("cpu", Mode.DEVELOPER, False, True),
        ("cpu", Mode.DEVELOPER, True, False),
        ("cpu", Mode.GATE, False, False),
        ("cpu", Mode.RECORDING, False, False),
        ("cuda", Mode.DEVELOPER, False, False),
    ],
)
def test_only_a_developers_run_on_a_cpu_without_a_given_time_is_planned(
    kind: str, mode: Mode, given: bool, planned: bool
) -> None:
    session = SimpleNamespace(
        device=SimpleNamespace(type=kind),
        result=SimpleNamespace(mode=mode),
        options=SimpleNamespace(budget_given=given),
        can_measure=lambda case: case != "needs a GPU",
    )
    cases = ["one", "needs a GPU", "two"]
    assert _plan_time(session, cases) == (TimePlan(2) if planned else None)  # type: ignore[arg-type]

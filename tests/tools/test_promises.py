"""Promises keep close to the records, or give the reason; the pages agree with the records."""

import pytest

from gpugate.catalogue import catalogue
from tools.machines import H200, MACHINES, Machine
from tools.promises import (
    RecordedCase,
    RunCase,
    is_kept,
    is_low,
    load_cases,
    load_other_cases,
    load_run_cases,
    speedups,
    write_promises,
)

ALL = [one for machine in MACHINES for one in load_cases(machine).values()]  # cases that both have stand twice
FROM_RUNS = [one for machine in MACHINES for one in load_run_cases(machine).values()]


def test_each_promise_far_below_its_record_has_its_reason_and_no_other_one_has() -> None:
    held: list[RecordedCase | RunCase] = [*ALL, *FROM_RUNS]
    assert [(one.machine.gpu, one.case.id) for one in held if is_low(one) and not one.reason] == []
    assert {one.case.id for one in held if one.reason} <= {one.case.id for one in held if is_low(one)}


def test_each_case_of_a_gpu_is_recorded_or_measured_or_listed_as_neither() -> None:
    for machine in MACHINES:
        measured = load_cases(machine).keys() | load_run_cases(machine).keys()
        others = [one.case.id for one in load_other_cases(machine)]
        found = sorted([*measured, *others])
        assert found == sorted(case.id for case in catalogue.cases() if case.device_kind == "cuda")


def test_each_case_without_a_record_keeps_its_promise_by_its_stored_runs() -> None:
    assert [one.case.id for one in FROM_RUNS if one.machine is H200 and not is_kept(one)] == []


def test_each_counted_process_of_a_record_keeps_its_promise() -> None:
    low = [one for one in ALL if speedups(one.entry.record).low < one.promise]
    assert [(one.machine.gpu, one.case.id, one.promise) for one in low] == []


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.folder)
def test_the_page_of_promises_is_up_to_date(machine: Machine) -> None:
    page = write_promises(machine, load_cases(machine))
    assert (machine.results / "promises.md").read_text(encoding="utf-8") == page, "run python -m tools.promises"

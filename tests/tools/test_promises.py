"""Promises keep close to the records, or give the reason; the pages agree with the records."""

import re

import pytest

from gpugate.errors import GpugateError
from tools.machines import CHANGED_AT, H200, MACHINES, Machine
from tools.promises import (
    COUNTER_TARGETS,
    RATE_TARGETS,
    SPEEDUP_TARGETS,
    Night,
    RecordedCase,
    fill_figures,
    load_cases,
    speedups,
    write_gates,
    write_promises,
)

FIGURES = H200.results / "figures.md"
ALL = [one for machine in MACHINES for one in load_cases(machine).values()]  # cases that both have stand twice


@pytest.fixture(scope="module")
def cases() -> dict[str, RecordedCase]:
    return load_cases(H200)


@pytest.fixture(scope="module")
def night() -> Night:
    return Night(H200)


def test_each_promise_far_below_its_record_or_its_target_has_its_reason_and_no_other_one_has() -> None:
    assert [(one.machine.gpu, one.case.id) for one in ALL if one.is_low and not one.reason] == []
    assert {one.case.id for one in ALL if one.reason} <= {one.case.id for one in ALL if one.is_low}


def test_the_classes_of_a_machine_are_those_of_its_records() -> None:
    assert {one.entry.current.environment.device_classes == one.machine.device_classes for one in ALL} == {True}


def test_each_counted_process_of_a_record_keeps_its_promise() -> None:
    low = [one for one in ALL if speedups(one.entry.current).low < one.promise and not one.is_outdated]
    assert [(one.machine.gpu, one.case.id, one.promise) for one in low] == []


def test_each_workload_that_changed_waits_for_its_records() -> None:
    recorded = {one.case.workload.name: one.entry.current.recorded_at for one in ALL if one.is_outdated}
    assert {name for name, at in recorded.items() if at < CHANGED_AT[name]} == CHANGED_AT.keys()


def test_each_target_is_of_a_recorded_case() -> None:
    recorded = {one.case.id for one in ALL}
    assert {*SPEEDUP_TARGETS, *RATE_TARGETS, *(case_id for case_id, _ in COUNTER_TARGETS)} <= recorded


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.folder)
def test_the_page_of_promises_is_up_to_date(machine: Machine) -> None:
    page = write_promises(machine, load_cases(machine), Night(machine))
    assert (machine.results / "promises.md").read_text(encoding="utf-8") == page, "run python -m tools.promises"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.folder)
def test_the_page_of_the_gate_is_up_to_date(machine: Machine) -> None:
    page = (machine.results / "gates.md").read_text(encoding="utf-8")
    assert page == write_gates(machine, Night(machine)), "run python -m tools.promises"


def test_each_figure_below_its_target_is_bold(cases: dict[str, RecordedCase], night: Night) -> None:
    """On the pages as they are: the night's figure of each target, bold where and only where the target is missed."""
    page = write_promises(H200, cases, night)
    for case_id, target in SPEEDUP_TARGETS.items():
        found = night.summary(case_id)
        assert found is not None
        (row,) = (
            line for line in page.splitlines() if line.startswith(f"| `{case_id.removesuffix('/cuda')}` | {target}")
        )
        cell = row.split(" | ")[4]
        assert cell.startswith("**") == (found.speedup.median < target.at_least), row


def test_the_marked_figures_are_up_to_date(cases: dict[str, RecordedCase]) -> None:
    text = FIGURES.read_text(encoding="utf-8")
    assert fill_figures(text, cases) == text, "run python -m tools.promises"
    markers = re.findall(r"<!--(end)?", text.replace("`<!--`", ""))
    assert markers == ["", "end"] * (len(markers) // 2)


def test_a_stale_figure_is_filled_in_anew(cases: dict[str, RecordedCase]) -> None:
    marker, case_id = "<!--speedup two-layer-net/all current-->", "two-layer-net/all/cuda"
    figure = speedups(cases[case_id].entry.current).as_speedup()
    text = f"It is {marker}9.99x (9..10)<!--end-->, and 9.99x stays."
    assert fill_figures(text, cases) == f"It is {marker}{figure}<!--end-->, and 9.99x stays."


@pytest.mark.parametrize(
    "marker",
    [
        "speedup two-layer-net/none anchor",
        "ladder none current",
        "share two-layer-net/all current",
        "rate driving/best old",
    ],
)
def test_a_marker_of_nothing_recorded_is_refused(marker: str, cases: dict[str, RecordedCase]) -> None:
    with pytest.raises(GpugateError, match=f"<!--{marker}--> names nothing that is recorded"):
        fill_figures(f"<!--{marker}-->1<!--end-->", cases)

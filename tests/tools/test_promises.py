"""Promises keep close to the records, or give the reason; the pages agree with the records."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from gpugate.catalogue import catalogue
from gpugate.errors import GpugateError
from tools import promises
from tools.machines import CHANGED_AT, H100, H200, MACHINES, Machine
from tools.promises import (
    COUNTER_TARGETS,
    DEFAULTS_SINCE,
    RATE_TARGETS,
    SPEEDUP_TARGETS,
    TF32,
    Night,
    PromisedCase,
    RecordedCase,
    RunCase,
    describe_strict_fp32,
    fill_figures,
    find_elsewhere,
    load_cases,
    load_other_cases,
    load_run_cases,
    speedups,
    write_gates,
    write_promises,
)

FIGURES = H200.results / "figures.md"
ALL = [one for machine in MACHINES for one in load_cases(machine).values()]  # cases that both have stand twice
FROM_RUNS = [one for machine in MACHINES for one in load_run_cases(machine).values()]


@pytest.fixture(scope="module")
def cases() -> dict[str, RecordedCase]:
    return load_cases(H200)


@pytest.fixture(scope="module")
def night() -> Night:
    return Night(H200)


def test_each_promise_far_below_its_record_or_its_target_has_its_reason_and_no_other_one_has() -> None:
    held: list[RecordedCase | RunCase] = [*ALL, *FROM_RUNS]
    assert [(one.machine.gpu, one.case.id) for one in held if one.is_low and not one.reason] == []
    explained = {one.case.id for one in held if one.reason and not one.is_outdated}
    assert explained <= {one.case.id for one in held if one.is_low}


def test_each_case_of_a_gpu_is_recorded_or_measured_or_listed_as_neither() -> None:
    for machine in MACHINES:
        parts: list[dict[str, PromisedCase]] = [{**load_cases(machine)}, {**load_run_cases(machine)}]
        found = [*parts[0], *parts[1], *(one.case.id for one in load_other_cases(machine))]
        assert sorted(found) == sorted(case.id for case in catalogue.cases() if case.device_kind == "cuda")


@pytest.fixture
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> tuple[Machine, Machine]:
    """An H200 and an H100 with their stored runs and without records."""
    machines = Machine("H200", "unrecorded-h200", H200.folder), Machine("H100", "unrecorded-h100", H100.folder)
    monkeypatch.setattr(promises, "MACHINES", machines)
    return machines


def test_a_run_without_a_record_is_listed_with_its_page(unrecorded: tuple[Machine, Machine]) -> None:
    page = write_promises(unrecorded[0], {}, Night(unrecorded[0]))
    (row,) = (line for line in page.splitlines() if line.startswith("| `llm-decode/cuda-graph`"))
    assert "| `compiled` |" in row
    assert "](runs/llm-decode.md)" in row


def test_a_case_that_ran_nowhere_is_never_run_and_a_recorded_one_names_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = Machine("H200", "unrecorded", "unmeasured")
    monkeypatch.setattr(promises, "MACHINES", (nowhere, H100))
    places = {one.case.id: find_elsewhere(one) for one in load_other_cases(nowhere)}
    assert places["video/encode/nvenc/cuda"] == "**never run**"
    assert places["two-layer-net/all/cuda"] == "recorded on an H100"


def test_a_promise_is_held_to_the_lower_run_of_the_machines(unrecorded: tuple[Machine, Machine]) -> None:
    of_h200, of_h100 = (load_run_cases(machine)["llm-decode/cuda-graph/cuda"] for machine in unrecorded)
    medians = [of_h200.spread.median, of_h100.spread.median]
    assert of_h200.lowest == of_h100.lowest == min(medians)
    assert min(medians) < 0.8 * max(medians)


def test_each_stored_run_without_a_record_keeps_its_promise() -> None:
    assert [(one.machine.gpu, one.case.id) for one in FROM_RUNS if one.spread.median < one.promise] == []


BEFORE, AFTER = (DEFAULTS_SINCE - timedelta(seconds=1)).isoformat(), DEFAULTS_SINCE.isoformat()


@pytest.mark.parametrize(
    ("workload", "recorded_at", "kernels", "on_tensor_cores", "marked"),
    [
        ("resnet50-inference", BEFORE, 219, 0, True),
        ("resnet50-inference", AFTER, 219, 0, False),
        ("resnet50-inference", BEFORE, 219, 54, False),  # in FP16
        ("resnet50-inference", BEFORE, 1, 0, False),  # no network
        ("two-layer-net", BEFORE, 219, 0, False),  # no convolution
    ],
)
def test_a_reference_in_strict_fp32_is_marked_and_nothing_else_is(
    cases: dict[str, RecordedCase], workload: str, recorded_at: str, kernels: int, on_tensor_cores: int, marked: bool
) -> None:
    one = next(one for one in cases.values() if one.case.workload.name == workload)
    counters = {"kernels": kernels, "tensor_core_kernels": on_tensor_cores}
    current = replace(one.entry.current, recorded_at=recorded_at, reference_counters=counters)
    assert replace(one, entry=replace(one.entry, current=current)).is_against_strict_fp32 is marked


@pytest.mark.parametrize(("started_at", "known"), [(BEFORE, True), (AFTER, False)])
def test_the_cost_of_strict_fp32_is_that_of_a_night(
    started_at: str, known: bool, night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = night.summary(TF32)
    assert found is not None
    night.runs[0] = replace(night.runs[0], started_at=started_at)
    monkeypatch.setattr(promises, "Night", lambda machine: night)
    assert (f"by {found.speedup.median:.2f} (H200, " in describe_strict_fp32("It was")) is known


def test_the_classes_of_a_machine_are_those_of_its_records() -> None:
    assert {one.entry.current.environment.device_classes == one.machine.device_classes for one in ALL} == {True}


def test_each_counted_process_of_a_record_keeps_its_promise() -> None:
    low = [one for one in ALL if speedups(one.entry.current).low < one.promise and not one.is_outdated]
    assert [(one.machine.gpu, one.case.id, one.promise) for one in low] == []


def test_each_workload_that_changed_waits_for_its_records() -> None:
    assert {one.case.workload.name for one in ALL if one.is_outdated} == CHANGED_AT.keys()


def test_a_record_after_the_change_is_held_to_its_promise() -> None:
    one = next(one for one in ALL if one.is_outdated)
    now = replace(one.entry.current, recorded_at="2026-11-28T00:00:00+00:00")
    assert not replace(one, entry=replace(one.entry, current=now)).is_outdated


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
            line
            for line in page.splitlines()
            if line.startswith(f"| `{case_id.removesuffix('/cuda')}` | ") and line.split(" | ")[2] == f"{target}"
        )
        cell = row.split(" | ")[5]
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

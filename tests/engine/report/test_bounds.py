"""The bound of each side in words, with its data path and its author's remark."""

from dataclasses import replace
from pathlib import Path

from gpugate.measurement.record import Counters
from gpugate.report.worth import bounds, reasons
from gpugate.results.case import CaseResult
from gpugate.workload import Point
from tests.support.stored_runs import case, stored

STREAMED = {
    "kernel_fraction": 0.02,
    "copy_fraction": 0.97,
    "active_fraction": 0.98,
    "overlap_fraction": 0.02,
    "bus_share": 0.91,
    "data_path_efficiency": 0.07,
    "pageable_copies": 0.0,
    "synchronizing_calls": 0.0,
}
COMPUTING = {**STREAMED, "kernel_fraction": 0.96, "copy_fraction": 0.004, "bus_share": 0.004, "pageable_copies": 2.0}
WAITING = {**COMPUTING, "kernel_fraction": 0.3, "data_path_efficiency": 0.95, "synchronizing_calls": 3.0}


def counted(name: str, counters: Counters, reference: Counters | None = None, **changed: object) -> CaseResult:
    made = case(name, **changed)
    assert made.measurement is not None
    found = replace(made.measurement, optimized_counters=counters, reference_counters=reference or {})
    return replace(made, measurement=found)


def told(tmp_path: Path, *cases: CaseResult) -> list[str]:
    return bounds(stored(tmp_path / "run.json", *cases))


def test_a_side_that_copies_is_told_with_its_share_of_the_bus_and_the_terms_are_explained(tmp_path: Path) -> None:
    line, terms = told(tmp_path, counted("streaming", STREAMED))
    assert line == (
        "tiny/streaming: copy-bound: copies run 97 % of the time, kernels 2 %; hidden 2 %, bus 91 %, data path 7 %"
    )
    assert terms.startswith("(hidden: copying time under which a kernel ran; bus: ")
    assert "waits" not in terms
    assert "pageable" not in terms


def test_pageable_copies_and_waits_are_told_where_there_are_any(tmp_path: Path) -> None:
    line = told(tmp_path, counted("slow", {**STREAMED, "pageable_copies": 8.0, "synchronizing_calls": 9.0}))[0]
    assert line.endswith("bus 91 %, pageable 8, data path 7 %, waits 9")


def test_nothing_is_told_of_copies_that_take_no_time_nor_twice_what_the_words_say(tmp_path: Path) -> None:
    lines = told(tmp_path, counted("computing", {**COMPUTING, "data_path_efficiency": 0.95}), counted("idle", WAITING))
    assert lines[:2] == [
        "tiny/computing: kernel-bound: kernels run 96 % of the time; data path 95 %",
        "tiny/idle: sync-bound: 3 waiting calls per step, the GPU is active 98 % of the time; data path 95 %",
    ]
    assert lines[2:] == ["(data path: a step on cached data, of its real time)"]
    copying = told(tmp_path, counted("copying", {**COMPUTING, "kernel_fraction": 0.9, "data_path_efficiency": 1.0}))
    assert copying[0].startswith("tiny/copying: kernel-bound: kernels run 90 % of the time; active 98 %, ")
    fed = told(tmp_path, counted("fed", {**COMPUTING, "data_path_efficiency": 0.4}))
    assert fed[0] == "tiny/fed: data-bound: on cached data a step takes 40 % of its time; active 98 %"


def test_a_side_that_several_cases_share_is_told_once_by_the_first_that_was_counted(tmp_path: Path) -> None:
    cases = (
        counted("uncounted", {}),
        counted("first", STREAMED, reference=WAITING),
        counted("second", STREAMED, reference={**WAITING, "active_fraction": 0.97}),
        counted("third", COMPUTING, reference=STREAMED, compared_with="first"),
    )
    lines = told(tmp_path, *cases)[:-1]
    assert [line.partition(":")[0] for line in lines] == ["tiny/baseline", "tiny/first", "tiny/second", "tiny/third"]
    assert "active 98 %" in lines[0]


def test_where_nothing_was_counted_nothing_is_said(tmp_path: Path) -> None:
    assert told(tmp_path, counted("cpu", {})) == []


def test_what_an_author_says_of_several_cases_is_told_once_and_of_a_rung_below_its_ladder(tmp_path: Path) -> None:
    why = "a stage waits for a buffer"
    run = stored(
        tmp_path / "run.json",
        case("buffers-1", why=why, point=Point("buffers", 1)),
        case("pipelined", why="five stages at once"),
        case("buffers-2", why=why, point=Point("buffers", 2)),
        case("rung", why="because", rung=1),
        case("skipped", None, why="never shown", skipped="no GPU"),
        case("silent"),
    )
    assert reasons(run) == [f"tiny/buffers-1, buffers-2: {why}", "tiny/pipelined: five stages at once"]

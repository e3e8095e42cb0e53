"""Promises keep close to the records, or give the reason; the pages of an H200 are those of the records."""

import re

import pytest

from gpugate.errors import GpugateError
from tools.promises import (
    COUNTER_TARGETS,
    NIGHT,
    RATE_TARGETS,
    RESULTS,
    SPEEDUP_TARGETS,
    Night,
    RecordedCase,
    fill_figures,
    load_cases,
    speedups,
    write_gates,
    write_promises,
)

FIGURES = RESULTS / "figures.md"


@pytest.fixture(scope="module")
def cases() -> dict[str, RecordedCase]:
    return load_cases()


@pytest.fixture(scope="module")
def night() -> Night:
    return Night(NIGHT)


def test_each_promise_far_below_its_record_or_its_target_has_its_reason_and_no_other_one_has(
    cases: dict[str, RecordedCase],
) -> None:
    assert {name for name, one in cases.items() if one.is_low} == {name for name, one in cases.items() if one.reason}


def test_each_counted_process_of_a_record_keeps_its_promise(cases: dict[str, RecordedCase]) -> None:
    broken = {name: one.promise for name, one in cases.items() if speedups(one.entry.current).low < one.promise}
    assert broken == {}


def test_each_target_is_of_a_recorded_case(cases: dict[str, RecordedCase]) -> None:
    assert {*SPEEDUP_TARGETS, *RATE_TARGETS, *(case_id for case_id, _ in COUNTER_TARGETS)} <= set(cases)


def test_the_pages_of_promises_and_of_the_gate_are_up_to_date(cases: dict[str, RecordedCase], night: Night) -> None:
    pages = {"promises.md": write_promises(cases, night), "gates.md": write_gates(night)}
    stale = [name for name, page in pages.items() if (RESULTS / name).read_text(encoding="utf-8") != page]
    assert stale == [], "run python -m tools.promises"


def test_each_figure_below_its_target_is_bold(cases: dict[str, RecordedCase], night: Night) -> None:
    """On the pages as they are: the night's figure of each target, bold where and only where the target is missed."""
    page = write_promises(cases, night)
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

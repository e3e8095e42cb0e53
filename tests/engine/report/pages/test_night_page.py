"""`night.html`: every case and verdict stands in it, whatever the names are, and a browser loads and runs nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpugate.report.pages.night import night_page
from gpugate.report.pages.rendering import TICKS, is_beyond, place, show_obeyed
from gpugate.report.view import RunView
from gpugate.results.autopsy import Autopsy
from gpugate.results.case import CaseResult
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.verdict import CASE_CHECKS, Outcome, Verdict
from gpugate.session.night_report import write_pages
from gpugate.store import run_file
from gpugate.store.night_files import PAGE, RUN
from tests.engine.commands.test_history_page import HOSTILE
from tests.support.read_pages import Page, squeeze
from tests.support.recorded_nights import recorded_night
from tests.support.stored_runs import MACHINE, STARTED, case, measured, stored

NAMES_OF_HTML = [*HOSTILE, '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "&lt;b&gt;", "</style>"]
NAMES = st.one_of(st.sampled_from(NAMES_OF_HTML), st.text(min_size=1, max_size=300))


def read(run: RunResult, **changed: object) -> Page:
    return Page(night_page(RunView(run), "no earlier night", **changed))


def verdict_of(case_id: str, check: str, outcome: Outcome, problem: str) -> Verdict:
    return Verdict(check, case_id, outcome, (Reason(ReasonCode.MACHINE_UNFIT, {"problem": problem}),))  # type: ignore[arg-type]


@st.composite
def hostile_runs(draw: st.DrawFn) -> RunResult:
    cases: dict[str, CaseResult] = {}
    for name, kind in draw(
        st.dictionaries(NAMES, st.sampled_from(["measured", "skipped", "failed"]), max_size=6)
    ).items():
        made = case("x", 3.0 if kind == "measured" else None)
        made.case_id, made.workload = name, draw(NAMES)
        if kind == "measured":
            outcomes = draw(st.tuples(*[st.sampled_from(Outcome)] * len(CASE_CHECKS)))
            pairs = zip(CASE_CHECKS, outcomes, strict=True)
            made.verdicts = [verdict_of(name, check, outcome, draw(NAMES)) for check, outcome in pairs]
            made.autopsy = Autopsy(draw(NAMES), "host", draw(NAMES), (draw(NAMES),)) if draw(st.booleans()) else None
        else:
            setattr(made, {"skipped": "skipped", "failed": "error"}[kind], draw(NAMES))
        cases[name] = made
    return RunResult(replace(MACHINE, device_name=draw(NAMES)), STARTED, 1, cases=cases, command=draw(NAMES))


@settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(hostile_runs())
def test_every_case_and_verdict_stands_in_the_page_and_nothing_is_run(run: RunResult) -> None:
    page = read(run)
    assert page.unsafe == []
    for made in run.cases.values():
        assert shown(made.case_id) in page.text
        assert shown(made.skipped or made.error or "") in page.text
        outcomes = {one.outcome for one in made.verdicts}
        for verdict in made.verdicts:
            assert verdict.outcome is Outcome.PASS or shown(verdict.reason) in page.text
        for line in made.autopsy.sentences if made.autopsy and outcomes != {Outcome.PASS} else ():
            assert shown(line) in page.text


def shown(words: str) -> str:
    return squeeze(show_obeyed(words))


def test_a_control_character_is_visible_and_half_of_a_surrogate_pair_a_question_mark() -> None:
    made = case("x", None, error="\x1b[31mred\x1b[0m \u202ereversed, no \ud83d here")
    text = read(RunResult(MACHINE, STARTED, 1, cases={made.case_id: made})).text
    assert r"\x1b[31mred\x1b[0m" in text
    assert "\u202e" not in text
    assert "no ? here" in text


def test_a_gate_that_ended_with_0_is_green(tmp_path: Path) -> None:
    """The golden pages have the other states of a run."""
    run = stored(tmp_path / "run.json", case("pass"), exit_status=0, gate=True)
    assert "gate green night of" in read(run).text


def test_a_night_is_compared_with_the_newest_one_beside_it(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / f"night-{number}"
        folder.mkdir()
        run = recorded_night(number, commit=f"commit-{number}")
        write_pages(folder, run)
        run_file.write(folder / RUN, run)
    assert "Compared with night-0" in Page((tmp_path / "night-1" / PAGE).read_bytes()).text


def test_a_run_without_a_case_has_a_page() -> None:
    empty = read(RunResult(MACHINE, STARTED, 1)).text
    assert "Nothing was judged." in empty
    assert "Nothing was measured." in empty
    assert "Every verdict is PASS." not in empty


@pytest.mark.parametrize(
    ("counters", "parts"),
    [
        (
            {"kernel_ms": 5.0, "host_to_device_ms": 1.0, "cpu_ms": 2.0},
            "kernels 50.0 %, copies 10.0 %, CPU 20.0 %, gaps 20.0 %",
        ),
        ({"kernel_ms": 9.0, "cpu_ms": 9.0}, "kernels 90.0 %, CPU 10.0 %"),
        ({"kernel_ms": 9.0, "cpu_ms": 9.0, "spinning": 1.0}, "kernels 90.0 %, gaps 10.0 %"),
        ({"kernels": 9.0}, ""),
    ],
)
def test_a_bar_divides_the_step_by_its_bill(counters: dict[str, float], parts: str) -> None:
    one = case("pass", measurement=measured("tiny/pass/cuda", 3.0, spread=0.0, optimized_counters=counters))
    page = night_page(RunView(RunResult(MACHINE, STARTED, 0, cases={one.case_id: one})), "").decode()
    assert re.findall("<title>a step: ([^<]*)", page) == [parts] * bool(parts)


# --- places on a scale ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "percent"), [(0.0, 50), (0.5, 98), (-0.5, 2), (0.125, 74), (-9.0, 2)])
def test_a_share_has_its_place_and_one_beyond_the_scale_stands_at_its_end(share: float, percent: float) -> None:
    assert place(share) == pytest.approx(percent)
    assert is_beyond(share) is (abs(share) > max(TICKS))

"""The page of `gpugate compare --html`: every duet, reason and difference, whatever the names are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpugate.commands.compare import Comparison, compare_page
from gpugate.judging.duet import judge_duets
from gpugate.store.version import Version
from tests.engine.judging.test_duet import measured, process
from tests.support.read_pages import Page, squeeze

HOSTILE = "<script>alert(1)</script>", "x" * 300, "a 🚀 b", '"><img src=x onerror=alert(1)>'


def compared(base: str = "main") -> Comparison:
    """Two processes that measured a case which is as fast as before, and one of each hostile name that is slower."""
    slower = replace(measured(10, 10.6), reference_counters={}, optimized_counters={})
    found = {"same": measured(10, 10), **dict.fromkeys(HOSTILE, slower)}
    one = replace(process(found["same"]), measured=found, wanted=tuple(found), added=("new <b>",), removed=("old",))
    taken = [one, one, replace(one, problems={"ill": "<i>it died</i>"})]
    versions = Version(base, Path(), "a" * 40), Version("<b>head</b>", Path())
    return Comparison(*versions, taken, *judge_duets(taken))


def test_every_duet_stands_in_the_page_and_nothing_is_run() -> None:
    page = Page(compare_page(compared("</title><script>")))
    assert page.unsafe == []
    rows = {row[0]: row[1:] for row in page.rows}
    for name in HOSTILE:
        assert rows[squeeze(name)][0] == "✕ SLOWER"
        assert rows[squeeze(name)][2] == "+6.0 %"
    assert rows["samekernels 3 -> 4 per step"][0] == "✓ SAME"
    assert "ill: <i>it died</i>" in page.text
    assert "new <b>: only in the head" in page.text
    assert "old: only in the base" in page.text
    assert "</title><script> (aaaaaaaaaaaa) → <b>head</b>: 5 cases: 4 SLOWER, 1 SAME" in page.text
    assert "turns 5 cases: 4 SLOWER, 1 SAME </title><script> (aaaaaaaaaaaa) → <b>head</b>" in page.text


def test_slower_cases_stand_first() -> None:
    page = Page(compare_page(compared()))
    outcomes = [row[1].split()[-1] for row in page.rows if len(row) > 8][1:]
    assert outcomes == [*["SLOWER"] * 4, "SAME"]

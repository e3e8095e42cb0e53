"""Every verdict on the recorded processes and on three stored runs is the one in `tests/golden/verdicts.json`."""

from __future__ import annotations

import json

from gpugate.results.verdict import CASE_CHECKS
from tests.support import golden_verdicts
from tests.support.golden_verdicts import GOLDEN

AGAIN = "where a verdict changed on purpose, run `python -m tests.support.golden_verdicts` and say why in the commit"


def test_no_verdict_differs_from_the_golden_file() -> None:
    lines = golden_verdicts.text(golden_verdicts.judged()).splitlines()
    golden = GOLDEN.read_text(encoding="utf-8").splitlines()
    changed = [f"{was.strip()} -> {now.strip()}" for was, now in zip(golden, lines, strict=False) if was != now]
    assert (changed[:3], len(lines)) == ([], len(golden)), AGAIN


def test_the_golden_file_has_every_recorded_case_and_a_fault_for_every_check_but_the_speedup() -> None:
    """The slower side of the small project keeps its promise."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert len(golden["records"]) == 96
    judged = [case for case in golden["runs"]["faulty"].values() if isinstance(case, dict)]
    good = ("PASS", "IMPROVED")
    assert [check for check in CASE_CHECKS if all(case[check][0] in good for case in judged)] == ["speedup"]
    clean = [case for case in golden["runs"]["clean"].values() if isinstance(case, dict)]
    assert [verdict for case in clean for verdict in case.values() if verdict[0] not in good] == []
    assert len(golden["runs"]["cut-off"]) == len(golden["runs"]["clean"]) - 1

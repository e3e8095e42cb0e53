"""Every verdict on the recorded processes and on three stored runs is the one in `tests/golden/verdicts.json`."""

from __future__ import annotations

from tests.support import golden_verdicts
from tests.support.golden_verdicts import GOLDEN

AGAIN = "where a verdict changed on purpose, run `python -m tests.support.golden_verdicts` and say why in the commit"


def test_no_verdict_differs_from_the_golden_file() -> None:
    lines = golden_verdicts.text(golden_verdicts.judged()).splitlines()
    golden = GOLDEN.read_text(encoding="utf-8").splitlines()
    changed = [f"{was.strip()} -> {now.strip()}" for was, now in zip(golden, lines, strict=False) if was != now]
    assert (changed[:3], len(lines)) == ([], len(golden)), AGAIN

"""Screen, details, results page and night page of nine runs are the texts in `tests/golden/words`."""

from __future__ import annotations

import pytest

from tests.support import golden_words

AGAIN = "where words changed on purpose, run `python -m tests.support.golden_words` and read the difference"
NAMES = sorted(path.name for path in golden_words.WORDS.iterdir())


def test_every_golden_text_is_still_written() -> None:
    assert sorted(golden_words.texts()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_written_in_its_golden_words(name: str) -> None:
    golden = (golden_words.WORDS / name).read_text(encoding="utf-8")
    assert golden_words.texts()[name].splitlines() == golden.splitlines(), AGAIN

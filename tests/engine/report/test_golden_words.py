"""Screen, details, summary, results page and night page of six runs are the texts in `tests/golden/words`."""

from __future__ import annotations

import pytest

from tests.support import golden_words

AGAIN = "where words changed on purpose, run `python -m tests.support.golden_words` and read the difference"
TEXTS = golden_words.texts()


def test_every_golden_text_is_still_written() -> None:
    assert sorted(TEXTS) == sorted(path.name for path in golden_words.WORDS.iterdir())


@pytest.mark.parametrize("name", TEXTS)
def test_a_run_is_written_in_its_golden_words(name: str) -> None:
    golden = (golden_words.WORDS / name).read_text(encoding="utf-8")
    assert TEXTS[name].splitlines() == golden.splitlines(), AGAIN

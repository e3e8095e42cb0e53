"""The address of a store: which one a session takes, and no password in a sentence about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpugate.errors import OptionError
from gpugate.store.store_url import choose_url


def test_a_refused_word_is_shown_without_its_password() -> None:
    with pytest.raises(OptionError, match=r"--perf-store is '\*\*\*': give an SQLAlchemy URL"):
        choose_url("me:secret@host", Path(), {})

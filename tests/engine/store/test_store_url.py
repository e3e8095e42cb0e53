"""The address of a store: which one a session takes, and no password in a sentence about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpugate.store.store_url import StoreUrlError, choose_url, hide_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5432/a", "postgresql://me:***@host:5432/a"),
        ("postgresql://me:sec:r@et@host/a", "postgresql://me:***@host/a"),
        ("me:secret@host", "me:***@host"),
        ("postgresql://me@host:5432/a", "postgresql://me@host:5432/a"),
        ("sqlite:////home/me/a.sqlite", "sqlite:////home/me/a.sqlite"),
    ],
)
def test_a_password_is_hidden(url: str, shown: str) -> None:
    assert hide_password(url) == shown


def test_a_refused_word_is_shown_without_its_password() -> None:
    with pytest.raises(StoreUrlError, match=r"--perf-store is 'me:\*\*\*@host': give an SQLAlchemy URL"):
        choose_url("me:secret@host", Path(), {})

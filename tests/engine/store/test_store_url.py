"""The address of a store: which one a session takes, and no password in a sentence about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpugate.store.store_url import StoreUrlError, choose_url, describe_url, hide_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5432/a", "postgresql://me:***@host:5432/a"),
        ("postgresql://me:sec:r@et@host/a", "postgresql://me:***@host/a"),
        ("me:secret@host", "me:***@host"),
        ("postgresql://me:/se?cret@host/a", "postgresql://***"),
        ("postgresql://me:sec\nret@host/a", "postgresql://me:***@host/a"),
        ("postgresql://host/a?sslpassword=secret&passfile=/secret", "postgresql://host/a?***"),
        ("postgresql://me:secret@host/a?password=sec&ret", "postgresql://me:***@host/a?***"),
        ("postgresql://me:secret@host/a?password=s@cret", "postgresql://***"),
        ("host=here password=secret", "host=***"),
        ("postgresql://h/db;password=secret", "postgresql://h/db;***"),
        ("postgresql://h/db#password=secret", "postgresql://h/db#***"),
        ("postgresql://me:secret", "postgresql://me:***"),
        ("h:secret/db", "h:***"),
        ("oracle+x://u/secret@h", "oracle+x://u:***@h"),
        ("postgresql://[::1]:5432/a", "postgresql://[::1]:5432/a"),
        ("sqlite:////home/me/a=b.sqlite?key=secret", "sqlite:////home/me/a=b.sqlite?***"),
        ("postgresql://me@host:5432/a", "postgresql://me@host:5432/a"),
        ("sqlite:////home/me/a.sqlite", "sqlite:////home/me/a.sqlite"),
    ],
)
def test_no_secret_of_a_url_is_shown(url: str, shown: str) -> None:
    assert describe_url(url) == shown


def test_a_refused_word_is_shown_without_its_password() -> None:
    with pytest.raises(StoreUrlError, match=r"--perf-store is 'me:\*\*\*@host': give an SQLAlchemy URL"):
        choose_url("me:secret@host", Path(), {})


@pytest.mark.parametrize(
    ("url", "words", "shown"),
    [
        ("postgresql://me:se%20cret@host/a", "no user se cret, se%20cret", "no user ***, ***"),
        ("postgresql://me:se/cr?et@host/a", "no such file se/cr?et", "no such file ***"),
        ("postgresql://host/a?password=s3cret&sslkey=/k", "'/k' is missing: s3cret", "'***' is missing: ***"),
        ("postgresql://host/a?password=se&cret", "no value of cret", "no value of ***"),
        ("postgresql://host/a?connect_timeout=5", "port 5432 refused", "port 5432 refused"),
        ("postgresql://host/a?connect_timeout=1&sslmode=no", "no route in 1 s", "no route in 1 s"),
        ("postgresql://me:s3cret", "invalid literal: 's3cret'", "invalid literal: '***'"),
        ("me:secret@host", "cannot parse me:secret@host", "cannot parse me:***@host"),
    ],
)
def test_no_secret_of_a_url_is_in_the_words_of_a_driver(url: str, words: str, shown: str) -> None:
    assert hide_secrets(words, url) == shown

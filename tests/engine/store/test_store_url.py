"""The address of a store: which one a session takes, and no password in a sentence about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpugate.errors import OptionError
from gpugate.store.store_url import choose_url, describe_url, hide_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5432/a", "postgresql://me:***@host:5432/a"),
        ("postgresql://me:sec:r@et@host/a", "postgresql://me:***@host/a"),
        ("postgresql://me:sec\nret@host/a", "postgresql://me:***@host/a"),
        ("postgresql://me:secret@host/a?password=sec&ret", "postgresql://me:***@host/a?***"),
        ("postgresql://[::1]:5432/a?sslpassword=secret&passfile=/secret", "postgresql://[::1]:5432/a?***"),
        ("postgresql://me@host:5432/a", "postgresql://me@host:5432/a"),
        ("postgresql://me:/se?cret@host/a", "postgresql://***"),
        ("postgresql://me:secret@host/a?password=s@cret", "postgresql://***"),
        ("postgresql://h/db;password=secret", "postgresql://***"),
        ("postgresql://h/db#password=secret", "postgresql://***"),
        ("postgresql://me:secret", "postgresql://***"),
        ("oracle+x://u/secret@h", "oracle+x://***"),
        ("me:secret@postgresql://host", "***"),
        ("me:secret@host", "***"),
        ("host=here password=secret", "***"),
        ("results/store.sqlite", "results/store.sqlite"),
        ("sqlite:////home/me/a=b.sqlite?key=secret", "sqlite:////home/me/a=b.sqlite?***"),
        ("sqlite:////home/me/a.sqlite", "sqlite:////home/me/a.sqlite"),
    ],
)
def test_no_secret_of_a_url_is_shown(url: str, shown: str) -> None:
    assert describe_url(url) == shown


def test_a_refused_word_is_shown_without_its_password() -> None:
    with pytest.raises(OptionError, match=r"--perf-store is '\*\*\*': give an SQLAlchemy URL"):
        choose_url("me:secret@host", Path(), {})


@pytest.mark.parametrize(
    ("url", "words", "shown"),
    [
        ("postgresql://me:se%20cret@host/a", "no user se cret, se%20cret", "no user ***, ***"),
        ("postgresql://host/a?password=s3cret&sslkey=/k3y", "'/k3y' is missing: s3cret", "'***' is missing: ***"),
        ("postgresql://host/a?password=se&cret", "no value of cret", "no value of ***"),
        ("postgresql://host/a?connect_timeout=5", "port 5432 refused", "port 5432 refused"),
        ("postgresql://me:se/cr?et@host/a", "no such file se/cr?et", "***"),
        ("me:secret@host", "cannot parse me:secret@host", "***"),
    ],
)
def test_no_secret_of_a_url_is_in_the_words_of_a_driver(url: str, words: str, shown: str) -> None:
    assert hide_secrets(words, url) == shown

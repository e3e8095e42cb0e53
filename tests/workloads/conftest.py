"""Fixtures that the tests of several workloads share."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of one module: what workloads make once, such as clips and fitted weights, stays for its next tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def no_thread_stays() -> Iterator[None]:
    """Fails the test that leaves a thread running."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before

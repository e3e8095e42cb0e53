"""A stand-in for a full disk: a limit of the size of files."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_up_to(limit_bytes: int) -> Iterator[None]:
    """Limits every file that this process writes to so many bytes.

    A whole test cannot run inside, since pytest may print to a file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

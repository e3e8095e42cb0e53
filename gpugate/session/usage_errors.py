"""A GpugateError while pytest starts, collects or begins ends it with one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpugate.errors import GpugateError
from gpugate.report.visible_text import show_controls


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns a GpugateError into pytest's usage error, with the same sentence."""
    try:
        yield
    except GpugateError as error:
        raise pytest.UsageError(show_controls(str(error))) from None

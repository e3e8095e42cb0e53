"""The end of a test whose programs are missing on this machine: it skips with the reason, and fails in CI."""

from __future__ import annotations

import os

import pytest

MUST_RUN = "GPUGATE_TESTS_MUST_RUN"  # .ci/run sets it: there a missing program is a failure


def require(missing: str | None) -> None:
    """Skips the test with this reason, or fails it in CI; does nothing where the reason is None."""
    if missing is not None:
        (pytest.fail if os.environ.get(MUST_RUN) else pytest.skip)(missing)

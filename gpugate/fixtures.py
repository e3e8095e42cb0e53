"""The fixtures of tests: `workload` is one measured case, `sweep` several, and `gate` applies the policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gpugate.session.registration import perf_run

if TYPE_CHECKING:
    from gpugate.results.verdict import Verdict
    from gpugate.session.judged import Judged, JudgedSweep, PerfTests


@pytest.fixture(scope="session")
def workload(request: pytest.FixtureRequest) -> Judged:
    """One case, measured once per session. Skips, naming what is missing, where the machine cannot run it."""
    __tracebackhide__ = True
    return _tests(request).judge_case(request.param)


@pytest.fixture(scope="session")
def sweep(request: pytest.FixtureRequest) -> JudgedSweep:
    """Every point of one sweep, each measured once per session. Skips where the machine can run none of them."""
    __tracebackhide__ = True
    return _tests(request).judge_sweep(request.param)


@pytest.fixture
def gate(request: pytest.FixtureRequest) -> Callable[[Verdict], None]:
    """Fails or passes by the verdict's outcome and the mode of the session."""
    return partial(_tests(request).gate, request)


def _tests(request: pytest.FixtureRequest) -> PerfTests:
    return perf_run(request.config).tests

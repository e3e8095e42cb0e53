"""The second plugin, registered when a session collects its first perf test or an option needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpugate.session.options import read_options

if TYPE_CHECKING:
    from gpugate.session.perf_run import PerfRun

PERF_RUN: pytest.StashKey[PerfRun] = pytest.StashKey()


def perf_run(config: pytest.Config) -> PerfRun:
    """The session's `PerfRun`; the first call registers it, and imports what it needs."""
    if PERF_RUN not in config.stash:
        from gpugate.session.perf_run import PerfRun

        config.stash[PERF_RUN] = PerfRun(config, read_options(config))
        config.pluginmanager.register(config.stash[PERF_RUN])
    return config.stash[PERF_RUN]

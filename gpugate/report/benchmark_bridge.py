"""Our samples in pytest-benchmark, through its public interface: a timer that replays what was recorded.

`benchmark.pedantic` times each round with the `timer` of the test's `benchmark` mark. A round of a replay sets that
timer to 0 before and to the recorded sample after, so that pytest-benchmark sees exactly our samples.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

SHOWN_BY = ("json", "save", "autosave", "compare", "histogram", "cprofile")  # options that write or print the samples
ASKED_BY = tuple(f"benchmark_{name}" for name in (*SHOWN_BY, "enable", "verbose"))
PLUGIN = "benchmark"  # the name of pytest-benchmark's entry point


class ReplayClock:
    """A timer in seconds that stands at `shown_s` during a replay and is `time.perf_counter` otherwise.

    It must run when nothing is replayed: pytest-benchmark reads a timer until it moves to learn its precision.
    """

    shown_s: float | None = None
    __name__ = "replay_of_recorded_samples"  # of a test's timer, which pytest-benchmark prints and stores

    def __call__(self) -> float:
        return time.perf_counter() if self.shown_s is None else self.shown_s


def replay(
    request: pytest.FixtureRequest,
    samples_s: Sequence[float],
    extra_info: Mapping[str, Any],
    name: str,
    params: Mapping[str, str],
) -> None:
    """Gives `samples_s`, in seconds per step, to pytest-benchmark as the rounds of a benchmark of this name.

    Does nothing without pytest-benchmark, and without one of its options: its table would only say again, in more
    columns, what ours says. --benchmark-group-by groups by the strings `params`, by default by `workload`; `extra_info`
    must be JSON-ready. Where pytest-benchmark is disabled (--benchmark-disable, xdist) it runs one round and records
    nothing; --benchmark-cprofile runs one more round than there are samples, of 0 s, which it does not record.
    """
    config, clock = request.config, ReplayClock()
    if not config.pluginmanager.hasplugin(PLUGIN) or not any(config.getoption(one, None) for one in ASKED_BY):
        return
    if config.getoption("benchmark_skip"):  # the fixture would skip our test
        return
    request.node.add_marker(pytest.mark.benchmark(timer=clock), append=False)
    benchmark = request.getfixturevalue("benchmark")
    benchmark.name = benchmark.fullname = name
    benchmark.group = params["workload"]
    benchmark.params = {**(benchmark.params or {}), **params}
    benchmark.extra_info.update(extra_info)
    left = iter(samples_s)

    def show(seconds: float | None) -> None:
        clock.shown_s = seconds

    show(0.0)
    try:
        benchmark.pedantic(lambda: show(next(left, 0.0)), setup=lambda: show(0.0), rounds=len(samples_s), iterations=1)
    finally:
        show(None)

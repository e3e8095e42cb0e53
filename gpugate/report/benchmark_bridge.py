"""Our samples in pytest-benchmark, through its public interface: a timer that replays what was recorded.

`benchmark.pedantic` times each round with the `timer` of the test's `benchmark` mark. A round of a replay sets that
timer to 0 before and to the recorded sample after, so that pytest-benchmark sees exactly our samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol, cast

import pytest

from gpugate.errors import OptionError
from gpugate.machine.environment import Environment

SHOWN_BY = ("json", "save", "autosave", "compare", "histogram", "cprofile")  # options that write or print the samples
ASKED_BY = tuple(f"benchmark_{name}" for name in (*SHOWN_BY, "only", "enable", "verbose", "skip"))
PLUGIN = "benchmark"  # the name of pytest-benchmark's entry point


class Benchmark(Protocol):
    """The used part of pytest-benchmark's fixture `benchmark`."""

    name: str
    fullname: str
    group: str | None
    params: Mapping[str, Any] | None
    extra_info: dict[str, Any]

    def pedantic(
        self, target: Callable[[], None], *, setup: Callable[[], None], rounds: int, iterations: int
    ) -> object: ...


class ReplayClock:
    """A timer in seconds that stands at `shown_s` during a replay and is `time.perf_counter` otherwise.

    It must run when nothing is replayed: pytest-benchmark reads a timer until it moves to learn its precision.
    """

    shown_s: float | None = None

    def __call__(self) -> float:
        return time.perf_counter() if self.shown_s is None else self.shown_s

    @property
    def __name__(self) -> str:
        """The name of a test's timer, which pytest-benchmark prints and stores."""
        return "replay_of_recorded_samples"

    def show(self, seconds: float | None) -> None:
        self.shown_s = seconds


REPLAY_CLOCK = ReplayClock()


def replay(
    benchmark: Benchmark,
    samples_s: Sequence[float],
    clock: ReplayClock,
    extra_info: Mapping[str, Any],
    name: str,
    params: Mapping[str, str],
) -> None:
    """Gives `samples_s`, in seconds per step, to pytest-benchmark as the rounds of a benchmark of this name.

    --benchmark-group-by groups by the strings `params`, by default by `workload`. The test must carry
    `@pytest.mark.benchmark(timer=clock)`, which `benchmark_or_none` gives it. `extra_info` must be JSON-ready. Where
    pytest-benchmark is disabled (--benchmark-disable, xdist) it runs one round and
    records nothing; --benchmark-cprofile runs one more round than there are samples, of 0 s, which it does not record.
    """
    benchmark.name = benchmark.fullname = name
    benchmark.group = params["workload"]
    benchmark.params = {**(benchmark.params or {}), **params}
    benchmark.extra_info.update(extra_info)
    left = iter(samples_s)
    clock.show(0.0)
    try:
        benchmark.pedantic(
            lambda: clock.show(next(left, 0.0)), setup=lambda: clock.show(0.0), rounds=len(samples_s), iterations=1
        )
    finally:
        clock.show(None)


def benchmark_or_none(request: pytest.FixtureRequest) -> Benchmark | None:
    """The fixture `benchmark` of the running test; None without pytest-benchmark, unless asked for, and when skipped.

    Its timer is REPLAY_CLOCK.

    Without one of its options its table would only say again, in more columns, what ours says. With --benchmark-skip
    the fixture would skip our test, which judges more than pytest-benchmark shows.
    """
    config = request.config
    if not config.pluginmanager.hasplugin(PLUGIN) or not any(config.getoption(name, None) for name in ASKED_BY):
        return None
    if config.getoption("benchmark_skip") and not config.getoption("benchmark_only"):
        return None
    request.node.add_marker(_replaying(), append=False)
    return cast(Benchmark, request.getfixturevalue("benchmark"))


def refuse_in_worker(config: pytest.Config) -> None:
    """Raises OptionError for an option that shows samples: pytest-benchmark, off in a worker, would ignore it."""
    shown = next((name for name in SHOWN_BY if config.getoption(f"benchmark_{name}", None)), None)
    if shown and not (config.getoption("benchmark_disable") or config.getoption("benchmark_skip")):
        off = "since pytest-benchmark is off in workers of pytest-xdist: use -n 0, or give --benchmark-disable"
        raise OptionError(f"--benchmark-{shown} with -n would show nothing, {off}")


def _replaying() -> pytest.MarkDecorator:
    return pytest.mark.benchmark(timer=REPLAY_CLOCK)


def keep_with_benchmark_only(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Lets --benchmark-only run `items`: it keeps the tests that ask for `benchmark` by name, which ours do late.

    Call it from `pytest_collection_modifyitems` with `tryfirst=True`, before pytest-benchmark looks.
    """
    if not (config.pluginmanager.hasplugin(PLUGIN) and config.getoption("benchmark_only")):
        return
    for item in items:
        item.add_marker(_replaying(), append=False)
        names = getattr(item, "fixturenames", None)
        if names is not None and "benchmark" not in names:  # the parameters of one test share the list
            names.append("benchmark")


def machine_info(environment: Environment) -> dict[str, Any]:
    """GPU, driver and versions for `pytest_benchmark_update_machine_info`: `machine_info.update(machine_info(env))`.

    JSON-ready, and the same in every run on one machine: pytest-benchmark warns where it differs.
    """
    told = {field.name: getattr(environment, field.name) for field in fields(environment)}
    return {"gpugate": {**told, "packages": dict(environment.packages)}}

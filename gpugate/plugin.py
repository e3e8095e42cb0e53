"""pytest's hooks of every session and the fixtures of tests: the second plugin, `PerfRun`, does what perf tests need.

`workload` is one measured case, `sweep` several, and `gate` applies the policy.

Importing this module imports no torch, no scipy and no sqlite, since every pytest run with gpugate installed does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpugate.profiling.session import ProfilePlugin, outer_run
from gpugate.session.options import add_options, add_settings, profilers, read_options
from gpugate.session.selection import PERF_RUN, expects_perf_tests, parametrize, usage_errors
from gpugate.session.workers import WORKERS, count_workers, start_workers

if TYPE_CHECKING:
    from gpugate.results.verdict import Verdict
    from gpugate.session.judged import Gate, Judged, JudgedSweep, PerfTests
    from gpugate.session.perf_run import PerfRun


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)
    add_settings(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if not profilers(config) or config.option.collectonly or config.option.help:
        return None
    with usage_errors():
        return outer_run(read_options(config), config.invocation_params.args)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU")
    config.addinivalue_line("markers", "multi_gpu(n): spans n GPUs or more, on a CPU n processes")
    with usage_errors():
        options = read_options(config)
        start_workers(config, options.worker, options.device, options.seed, measures=expects_perf_tests(config))
        if options.profiling is not None:
            config.pluginmanager.register(ProfilePlugin(options))
        if options.gate or options.given_paths:
            perf_run(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if parametrize(metafunc):
        perf_run(metafunc.config)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    return count_workers(config.getoption("perf_device")) if expects_perf_tests(config) else None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The controller of xdist collects no test: it learns of perf tests when a worker that has some ends."""
    if node.config.stash[WORKERS].measured:
        perf_run(node.config)


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
def gate(request: pytest.FixtureRequest) -> Gate:
    """Fails or passes by the verdict's outcome and the mode of the session."""

    def decide(*verdicts: Verdict) -> None:
        __tracebackhide__ = True
        _tests(request).gate(request, *verdicts)

    return decide


def perf_run(config: pytest.Config) -> PerfRun:
    """The second plugin; the first perf test or option that needs it registers it, and imports what it needs."""
    found: PerfRun | None = config.pluginmanager.get_plugin(PERF_RUN)
    if found is None:
        from gpugate.session.perf_run import PerfRun

        found = PerfRun(config, read_options(config))
        config.pluginmanager.register(found, PERF_RUN)
    return found


def _tests(request: pytest.FixtureRequest) -> PerfTests:
    __tracebackhide__ = True
    found = perf_run(request.config).tests
    if found is None:
        words = "nothing is measured in this session: `gate` serves tests of `workload` or `sweep`"
        pytest.fail(words, pytrace=False)
    return found

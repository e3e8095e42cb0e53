"""pytest-benchmark sees our samples, all of them and nothing else, through its own options."""

import json
import math
import statistics
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpugate.errors import OptionError
from gpugate.machine.environment import Environment
from gpugate.report.benchmark_bridge import ReplayClock, machine_info, refuse_in_worker, replay

SAMPLES_S = [0.00812, 0.00809, 0.00811, 0.1 + 0.2, 1e-7]
CONFTEST = """
    import pytest

    from gpugate.machine.environment import Environment
    from gpugate.report.benchmark_bridge import keep_with_benchmark_only, machine_info

    def pytest_configure(config):
        if not config.pluginmanager.hasplugin("benchmark"):
            config.addinivalue_line("markers", "benchmark: of pytest-benchmark, which is not here")

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(machine_info):
        machine_info.update(machine_info_of_the_run)

    machine_info_of_the_run = machine_info(
        Environment("cuda", "NVIDIA H200", "EPYC", 16, "3.12.3", {"torch": "2.11.0"}, driver="580.65.06")
    )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(config, items):
        keep_with_benchmark_only(config, [item for item in items if "throughput" in item.name])
"""
TESTS = f"""
    import pytest

    from gpugate.report.benchmark_bridge import REPLAY_CLOCK, benchmark_or_none, replay

    SAMPLES_S = {SAMPLES_S!r}

    @pytest.mark.parametrize("side", ["baseline", "cuda-graph"])
    def test_throughput(request, side):
        benchmark = benchmark_or_none(request)
        if benchmark is not None:
            extra_info = {{"speedup": 4.41, "verdict": "PASS"}}
            params = {{"workload": "net/cuda", "device": "cuda"}}
            replay(benchmark, SAMPLES_S, REPLAY_CLOCK, extra_info, f"net/{{side}}", params)

    def test_something_else():
        pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # for workers and for pytest-benchmark's command
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    return pytester


def run(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    return project.runpytest_inprocess("--strict-markers", "-p", "no:gpugate.plugin", *options)


def saved(path: Path) -> list[dict[str, object]]:
    return sorted(json.loads(path.read_text())["benchmarks"], key=lambda made: made["name"])


def test_the_json_holds_exactly_our_samples(project: pytest.Pytester) -> None:
    run(project, "--benchmark-json", "all.json").assert_outcomes(passed=3)
    baseline, graph = saved(project.path / "all.json")
    for made in (baseline, graph):
        assert made["stats"]["data"] == SAMPLES_S
        assert made["stats"]["rounds"] == len(SAMPLES_S)
        assert made["stats"]["median"] == statistics.median(SAMPLES_S)
        assert made["stats"]["max"] == 0.1 + 0.2
        assert made["extra_info"] == {"speedup": 4.41, "verdict": "PASS"}
        assert made["group"] == "net/cuda"
        assert made["params"] == {
            "side": made["name"].removeprefix("net/"),
            "workload": "net/cuda",
            "device": "cuda",
        }
        assert made["options"]["timer"] == "replay_of_recorded_samples"


def test_the_json_names_gpu_driver_and_versions(project: pytest.Pytester) -> None:
    run(project, "--benchmark-json", "all.json")
    told = json.loads((project.path / "all.json").read_text())
    assert told["machine_info"]["gpugate"]["device_name"] == "NVIDIA H200"
    assert told["machine_info"]["gpugate"]["driver"] == "580.65.06"
    assert told["machine_info"]["gpugate"]["packages"] == {"torch": "2.11.0"}
    assert "python_version" in told["machine_info"]
    assert "id" in told["commit_info"]


def test_a_saved_run_is_listed_and_compared(project: pytest.Pytester) -> None:
    run(project, "--benchmark-save", "first")
    listed = project.run(sys.executable, "-m", "pytest_benchmark", "list")
    listed.stdout.fnmatch_lines(["*0001_first.json"])
    columns = ("--columns", "min,median,rounds", "--time-unit", "ms")
    compared = project.run(sys.executable, "-m", "pytest_benchmark", "compare", "0001", *columns)
    assert compared.ret == 0
    compared.stdout.fnmatch_lines(["*benchmark 'net/cuda': 2 tests*", "*net/cuda-graph*8.1100*5*"])


def test_a_second_run_compares_with_the_first_without_a_warning(project: pytest.Pytester) -> None:
    run(project, "--benchmark-save", "first")
    second = run(project, "--benchmark-compare", "--benchmark-compare-fail", "median:1%")
    second.assert_outcomes(passed=3)
    assert "machine_info is different" not in second.stdout.str() + second.stderr.str()


def test_the_parameters_group_the_table(project: pytest.Pytester) -> None:
    by_side = run(project, "--benchmark-group-by", "param:device,param:side", "--benchmark-verbose")
    assert "benchmark 'device=cuda side=cuda-graph': 1 tests" in by_side.stdout.str()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"json": Path("all.json")}, "--benchmark-json"),
        ({"autosave": "0001"}, "--benchmark-autosave"),
        ({"compare": True}, "--benchmark-compare"),
        ({"json": Path("all.json"), "disable": True}, None),
        ({"json": Path("all.json"), "skip": True}, None),
        ({"verbose": True}, None),
    ],
)
def test_a_worker_refuses_the_options_that_it_would_ignore(given: dict[str, object], problem: str | None) -> None:
    config: Any = SimpleNamespace(getoption=lambda name, default=None: given.get(name.removeprefix("benchmark_")))
    with nullcontext() if problem is None else pytest.raises(OptionError, match=f"{problem} with -n .* use -n 0"):
        refuse_in_worker(config)


def test_without_pytest_benchmark_a_worker_refuses_nothing() -> None:
    config: Any = SimpleNamespace(getoption=lambda name, default=None: default)
    refuse_in_worker(config)


def test_a_histogram_is_drawn(project: pytest.Pytester) -> None:
    # In a process of its own: what draws it replaces the list of import hooks, which later tests would inherit.
    result = project.runpytest_subprocess("-p", "no:gpugate.plugin", "--benchmark-histogram", "picture")
    result.assert_outcomes(passed=3)
    drawn = list(project.path.glob("picture*.svg"))
    assert len(drawn) == 1
    assert "cuda-graph" in drawn[0].read_text()


@pytest.mark.parametrize(
    ("options", "passed", "skipped", "shown"),
    [
        ((), 3, 0, False),
        (("--benchmark-autosave",), 3, 0, True),
        (("--benchmark-disable",), 3, 0, False),
        (("--benchmark-skip",), 3, 0, False),
        (("--benchmark-only",), 2, 1, True),
        (("-n", "1"), 3, 0, False),
        (("--benchmark-cprofile", "tottime"), 3, 0, True),
        (("--benchmark-min-time", "1", "--benchmark-warmup", "on"), 3, 0, False),
        (("-p", "no:benchmark"), 3, 0, False),
    ],
    ids=lambda value: " ".join(value) or "plain" if isinstance(value, tuple) else None,
)
def test_every_option_of_pytest_benchmark_leaves_our_tests_running(
    project: pytest.Pytester, options: tuple[str, ...], passed: int, skipped: int, shown: bool
) -> None:
    result = run(project, *options)
    result.assert_outcomes(passed=passed, skipped=skipped)
    assert ("benchmark 'net/cuda': 2 tests" in result.stdout.str()) is shown


def test_the_clock_runs_while_nothing_is_replayed(project: pytest.Pytester) -> None:
    """A user's own benchmark with our timer calibrates, which reads the timer until it moves."""
    project.makepyfile(
        """
        import pytest

        from gpugate.report.benchmark_bridge import REPLAY_CLOCK

        @pytest.mark.benchmark(timer=REPLAY_CLOCK, max_time=0.01)
        def test_throughput(benchmark):
            benchmark(sum, range(100))
            assert 1e-9 < benchmark.stats["median"] < 1e-2
        """
    )
    run(project).assert_outcomes(passed=1)


def test_the_clock_runs_again_after_a_replay_that_raised() -> None:
    clock = ReplayClock()

    class Broken:
        group: str | None = None
        params: Mapping[str, object] | None = None
        extra_info: dict[str, object]

        def __init__(self) -> None:
            self.extra_info = {}

        def pedantic(self, target: object, **_: object) -> None:
            assert clock() == 0.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        replay(Broken(), [1.0], clock, {}, "name", {"workload": "net"})
    assert clock() > 0.0


def test_a_replay_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples to replay: measure first"):
        replay(object(), [], ReplayClock(), {}, "name", {"workload": "net"})  # type: ignore[arg-type]


def test_machine_info_is_json_and_holds_every_fact() -> None:
    environment = Environment("cpu", "Xeon", "Xeon", 2, "3.11.7", {"torch": "2.11.0"}, power_limit_w=math.pi)
    told = json.loads(json.dumps(machine_info(environment), sort_keys=True))["gpugate"]
    assert told["device_name"] == "Xeon"
    assert told["power_limit_w"] == math.pi
    assert told["driver"] is None

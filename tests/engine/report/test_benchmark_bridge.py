"""pytest-benchmark sees our samples, all of them and nothing else, through its own options."""

import json
import statistics
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpugate.errors import OptionError
from gpugate.report.benchmark_bridge import refuse_in_worker

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


def test_the_json_holds_exactly_our_samples_and_the_machine(project: pytest.Pytester) -> None:
    run(project, "--benchmark-json", "all.json").assert_outcomes(passed=3)
    machine = json.loads((project.path / "all.json").read_text())["machine_info"]["gpugate"]
    assert (machine["device_name"], machine["driver"]) == ("NVIDIA H200", "580.65.06")
    assert machine["packages"] == {"torch": "2.11.0"}
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


def test_a_second_run_compares_with_the_first_without_a_warning(project: pytest.Pytester) -> None:
    run(project, "--benchmark-save", "first")
    second = run(project, "--benchmark-compare", "--benchmark-compare-fail", "median:1%")
    second.assert_outcomes(passed=3)
    assert "machine_info is different" not in second.stdout.str() + second.stderr.str()


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

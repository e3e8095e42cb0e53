"""pytest-benchmark sees our samples, all of them and nothing else, through its own options."""

import json
import statistics
from pathlib import Path

import pytest

SAMPLES_S = [0.00812, 0.00809, 0.00811, 0.1 + 0.2, 1e-7]
TESTS = f"""
    import pytest

    from gpugate.report.benchmark_bridge import replay

    SAMPLES_S = {SAMPLES_S!r}

    @pytest.mark.parametrize("side", ["baseline", "cuda-graph"])
    def test_throughput(request, side):
        params = {{"workload": "net/cuda", "device": "cuda"}}
        replay(request, SAMPLES_S, {{"speedup": 4.41, "verdict": "PASS"}}, f"net/{{side}}", params)

    def test_something_else():
        pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # for workers and for pytest-benchmark's command
    pytester.makepyfile(TESTS)
    return pytester


def run(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    return project.runpytest_inprocess("--strict-markers", "-p", "no:gpugate.plugin", *options)


def test_the_json_holds_exactly_our_samples(project: pytest.Pytester) -> None:
    run(project, "--benchmark-json", "all.json").assert_outcomes(passed=3)
    found = json.loads((project.path / "all.json").read_text())["benchmarks"]
    assert sorted(made["name"] for made in found) == ["net/baseline", "net/cuda-graph"]
    for made in found:
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
    ("options", "shown"),
    [
        ((), False),
        (("--benchmark-autosave",), True),
        (("--benchmark-disable",), False),
        (("-n", "1"), False),
    ],
    ids=lambda value: " ".join(value) or "plain" if isinstance(value, tuple) else None,
)
def test_every_option_of_pytest_benchmark_leaves_our_tests_running(
    project: pytest.Pytester, options: tuple[str, ...], shown: bool
) -> None:
    result = run(project, *options)
    result.assert_outcomes(passed=3)
    assert ("benchmark 'net/cuda': 2 tests" in result.stdout.str()) is shown

"""Workloads of a user: registered in conftest.py, and their ladders and sweeps."""

import re
from textwrap import dedent
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpugate.report.next_step import describe_threads
from gpugate.results.series import ladders, sweeps
from gpugate.session.selection import one_node_per_case
from gpugate.store import run_file
from gpugate.workload import Case, SweepCases
from tests.support.tiny_project import CONFTEST, PROMISE, QUICK, ROOT, TINY, TinyProject
from workloads.streaming import STREAMING_COMPUTE

SHORTENED = CONFTEST.replace('register_module("tiny")', "").replace("from gpugate.catalogue import register_module", "")


def workload_named(name: str) -> str:
    """The source of a module like tiny.py with another workload name."""
    return TINY.format(build=QUICK, optimizations=PROMISE).replace('Workload("tiny"', f'Workload("{name}"')


def test_a_workload_is_registered_in_conftest(tiny: TinyProject) -> None:
    (tiny.path / "tiny.py").unlink()
    registering = "from gpugate.catalogue import register\nfor each in WORKLOADS:\n    assert register(each) is each\n"
    tiny.write("conftest.py", "\n".join([dedent(SHORTENED), workload_named("mine"), registering]))
    night = tiny.path / "night"
    night.mkdir()  # behind a space it makes pytest start anew, and execute conftest.py a second time
    result = tiny.run("--perf-device=cpu", "-k", "outputs", "--perf-report", str(night))
    assert result.status == 0, result.text
    assert list(tiny.json("night/run.json")["cases"]) == ["mine/quick/cpu"]


def test_every_case_has_an_id_that_reads_and_cuda_carries_its_mark(tiny: TinyProject) -> None:
    both, cuda_only = PROMISE, 'Optimization("graphed", quick, {"sm_90": 2.0, "cuda": 1.5})'
    tiny.workload(optimizations=f"{both}, {cuda_only}")
    listed = tiny.run("--co", "-q", "-k", "outputs", "--perf-json=run.json").text
    assert re.findall(r"\[(.*)\]", listed) == ["tiny/quick/cuda", "tiny/quick/cpu", "tiny/graphed/cuda"]
    assert "= gpugate =" not in listed, "collecting measures nothing"
    assert not (tiny.path / "run.json").exists()
    marked = tiny.run("--co", "-q", "-k", "outputs", "-m", "gpu").text
    assert re.findall(r"\[(.*)\]", marked) == ["tiny/quick/cuda", "tiny/graphed/cuda"]


def test_each_suite_has_the_workloads_of_its_conftest_and_records_of_another_suite_are_no_problem(
    tiny: TinyProject,
) -> None:
    """Unit tests, and two folders of perf tests, each with its own conftest.py, which registers a workload."""
    (tiny.path / "tiny.py").unlink()
    tiny.write("conftest.py", SHORTENED)
    for folder, name in (("first", "one"), ("second", "two")):
        body = f"{workload_named(name)}\nfrom gpugate.catalogue import register\nregister(WORKLOADS[0])\n"
        tiny.write(f"tests/{folder}/conftest.py", body)
        tiny.write(f"tests/{folder}/quick_ms", "1")
        tiny.write(f"tests/{folder}/test_{folder}.py", "def test_it(workload, gate):\n    gate(workload.equivalence)\n")
    tiny.write("tests/unit/conftest.py", "import pytest\n@pytest.fixture\ndef number():\n    return 3\n")
    tiny.write("tests/unit/test_number.py", "def test_number(number):\n    assert number == 3\n")
    recorded = tiny.run("tests", "--perf-device=cpu", "-v", "--update-baselines=first", "-operf_processes=2")
    assert recorded.status == 0, recorded.text
    passed = re.findall(r"(test_\w+\.py::\S+) PASSED", recorded.text)
    measured = ["test_first.py::test_it[one/quick/cpu]", "test_second.py::test_it[two/quick/cpu]"]
    assert passed == [*measured, "test_number.py::test_number"]
    assert sorted(path.name for path in tiny.baselines.glob("*.json")) == ["one.json", "two.json"]
    alone = tiny.run("tests/first", "--perf-device=cpu")
    assert (alone.status, "no selected test measures" in alone.text) == (0, False), alone.text
    assert "no longer in the catalogue" not in alone.text
    only = tiny.run("tests", "-k", "number")
    assert (only.status, "1 passed" in only.text) == (0, True), only.text


# --- ladders and sweeps -----------------------------------------------------------------------------------------------

STEPPED = """
def taking(milliseconds):
    return lambda context: sleeping(milliseconds)


def never(context):
    raise torch.OutOfMemoryError("CUDA out of memory")
"""
SWEPT = """
    Optimization("two", taking(2), {"cpu": 0.01}, why="it sleeps for 2 ms"),
    Optimization("one", taking(1), {"cpu": 0.01}, compared_with="two"),
    Optimization("batch-8", taking(3), {"cpu": 0.01}, point=Point("batch", 8)),
    Optimization("batch-16", taking(1), {"cpu": 0.01}, point=Point("batch", 16)),
    Optimization("batch-32", never, {"cpu": 0.01}, point=Point("batch", 32))
"""


def swept(tiny: TinyProject) -> TinyProject:
    tiny.workload(STEPPED, SWEPT)
    source = (tiny.path / "tiny.py").read_text(encoding="utf-8")
    source = source.replace("import Contract,", "import Contract, Point,").replace(
        "cold=False", "cold=False, ladder=True"
    )
    tiny.write("tiny.py", source)
    tiny.write("perf_tests/test_sweeps.py", (ROOT / "perf_tests/test_sweeps.py").read_text(encoding="utf-8"))
    return tiny


def test_a_ladder_and_a_sweep_are_measured_shown_and_written(tiny: TinyProject) -> None:
    both = "def test_knee_beside_a_case(workload, sweep, gate):\n    gate(workload.equivalence)\n    gate(sweep.knee)\n"
    tiny.write("perf_tests/test_both.py", both)
    result = swept(tiny).run("--perf-device=cpu", "--perf-json=run.json", "-k", "outputs or knee", "-v")
    assert result.status == 0, result.text
    assert "ladder of tiny/cpu" in result.text
    assert "sweep of tiny/batch/cpu" in result.text
    assert "pytest perf_tests -k 'outputs or knee' --update-baselines=" in result.text
    run = run_file.read(tiny.path / "run.json")
    (ladder,) = ladders(run.cases)
    assert [rung.name for rung in ladder.rungs] == ["baseline", "two", "one"]
    (sweep,) = sweeps(run.cases)
    assert (sweep.knee, sweep.problems) == (16, {32: "out of memory"})
    assert run.cases["tiny/batch-32/cpu"].skipped == "out of memory"


def test_a_knee_of_which_nothing_is_recorded_fails_a_gate(tiny: TinyProject) -> None:
    folder = str(tiny.path / "perf_tests")
    result = swept(tiny).run(folder, "--perf-device=cpu", "--gate", "-operf_processes=1", "-k", "knee")
    assert result.status == 1, result.text
    said = "NO_BASELINE knee of tiny/batch/cpu: the knee is at 16; nothing is recorded to compare it with"
    step = f'{describe_threads("cpu")}pytest {tiny.path}/perf_tests -k "tiny/batch" --update-baselines'
    assert f"{said}\n  next: {step}" in result.text
    assert "not measured\n  1 case: out of memory\n" in result.text  # a result, where no record has a time of it


def test_a_point_is_measured_again_by_its_own_test_or_else_by_that_of_its_sweep() -> None:
    def selected(name: str, **asked: Any) -> pytest.Item:
        return cast(pytest.Item, SimpleNamespace(nodeid=name, callspec=SimpleNamespace(params=asked)))

    one, eight = (Case(STREAMING_COMPUTE, STREAMING_COMPUTE.optimization(f"buffers-{n}"), "cuda") for n in (1, 8))
    items = [selected("knee", sweep=SweepCases("buffers", (one, eight))), selected("of one", workload=one)]
    assert one_node_per_case(items) == {one.id: "of one", eight.id: "knee"}

"""A user's ladder and sweep, from the declaration to the terminal, the JSON file and the gate."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpugate.results.series import ladders, sweeps
from gpugate.session.selection import one_node_per_case
from gpugate.store import run_file
from gpugate.workload import Case, SweepCases
from tests.support.tiny_project import ROOT, TinyProject
from workloads.streaming import STREAMING_COMPUTE

STEPPED = """
def taking(milliseconds):
    return lambda context: sleeping(milliseconds)


def never(context):
    raise torch.OutOfMemoryError("CUDA out of memory")


def said(context):
    return "98 % right"
"""
SWEPT = """
    Optimization("two", taking(2), {"cpu": 0.01}, why="it sleeps for 2 ms"),
    Optimization("one", taking(1), {"cpu": 0.01}, compared_with="two", proofs=(Proof("it learns", said),)),
    Optimization("batch-8", taking(3), {"cpu": 0.01}, point=Point("batch", 8)),
    Optimization("batch-16", taking(1), {"cpu": 0.01}, point=Point("batch", 16)),
    Optimization("batch-32", never, {"cpu": 0.01}, point=Point("batch", 32))
"""


def swept(tiny: TinyProject) -> TinyProject:
    tiny.workload(STEPPED, SWEPT)
    source = (tiny.path / "tiny.py").read_text(encoding="utf-8")
    source = source.replace("import Contract,", "import Contract, Point, Proof,").replace(
        "cold=False", "cold=False, ladder=True"
    )
    tiny.write("tiny.py", source)
    tiny.write("perf_tests/test_sweeps.py", (ROOT / "perf_tests/test_sweeps.py").read_text(encoding="utf-8"))
    return tiny


def test_a_ladder_and_a_sweep_are_measured_shown_and_written(tiny: TinyProject) -> None:
    result = swept(tiny).run("--perf-device=cpu", "--perf-json=run.json", "-k", "outputs or knee", "-v")
    assert result.status == 0, result.text
    assert "ladder of tiny/cpu" in result.text
    assert "two: it sleeps for 2 ms" in result.text
    assert "sweep of tiny/batch/cpu" in result.text
    assert "knee: 16; the smallest value within 3 % of the best, by speedups, which are from pairs" in result.text
    run = run_file.read(tiny.path / "run.json")
    (ladder,) = ladders(run.cases)
    assert [rung.name for rung in ladder.rungs] == ["baseline", "two", "one"]
    gain, total = ladder.rungs[2].gain, ladder.rungs[2].total
    assert gain is not None
    assert total is not None
    assert gain.median < total.median
    (sweep,) = sweeps(run.cases)
    assert (sweep.knee, [point.problem for point in sweep.points]) == (16, [None, None, "out of memory"])
    assert run.cases["tiny/batch-32/cpu"].skipped == "out of memory"
    assert tiny.reasons("equivalence", "tiny/one/cpu")["proven"] == {"proof": "it learns", "words": "98 % right"}


def test_a_knee_of_which_nothing_is_recorded_fails_a_gate(tiny: TinyProject) -> None:
    folder = str(tiny.path / "perf_tests")
    result = swept(tiny).run(folder, "--perf-device=cpu", "--gate", "-operf_processes=1", "-k", "knee")
    assert result.status == 1, result.text
    said = "NO_BASELINE knee of tiny/batch/cpu: the knee is at 16; nothing is recorded to compare it with"
    assert f'{said}\n  next: pytest {tiny.path}/perf_tests -k "tiny/batch" --update-baselines' in result.text


def test_a_point_is_measured_again_by_its_own_test_or_else_by_that_of_its_sweep() -> None:
    def selected(name: str, **asked: Any) -> pytest.Item:
        return cast(pytest.Item, SimpleNamespace(nodeid=name, callspec=SimpleNamespace(params=asked)))

    one, eight = (Case(STREAMING_COMPUTE, STREAMING_COMPUTE.optimization(f"buffers-{n}"), "cuda") for n in (1, 8))
    items = [selected("knee", sweep=SweepCases("buffers", (one, eight))), selected("of one", workload=one)]
    assert one_node_per_case(items) == {one.id: "of one", eight.id: "knee"}

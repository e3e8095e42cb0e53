"""`pytest -n auto` on a machine that pretends to have two GPUs: its sides run on the CPU."""

import json
from dataclasses import replace

import pytest

from gpugate.judging.decide_again import decide_again
from gpugate.store import run_file
from tests.support.tiny_project import TinyProject

FIVE = ", ".join(f'Optimization("{name}", quick, {{"cpu": 0.01}})' for name in ("one", "two", "three", "fed", "spans"))
DURATIONS_S = {"one": 1.0, "two": 10.0, "three": 2.0, "fed": 3.0, "spans": 4.0}
CONFTEST = """
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import torch

from gpugate.machine import nvml
from gpugate.session import opening, perf_run

plan_case = perf_run.plan_case
nvml.list_visible_gpus = lambda: ["GPU-a", "GPU-b"]
nvml.read_near_cores = lambda name: frozenset()
opening.choose_device = lambda asked, of_worker=None: torch.device("cpu")
perf_run.plan_case = lambda case, *facts: replace(
    plan_case(case, *facts),
    needs_host=case.optimization.name == "fed",
    gpus=2 if case.optimization.name == "spans" else 1,
)

def pytest_runtest_setup(item):
    with open("ran", "a") as file:
        words = [os.environ["PYTEST_XDIST_WORKER"], os.environ["CUDA_VISIBLE_DEVICES"], item.name]
        print(json.dumps(words), file=file)
    if "/fed/" in item.name and Path("interrupt").exists():
        Path("interrupt").unlink()
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)
"""


@pytest.fixture
def two_gpus(tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a CPU is named by its cores, and workers have shares of them
    tiny.workload(optimizations=FIVE)
    assert tiny.run("--perf-device=cpu", "--perf-json=durations.json", "-k", "outputs").status == 0
    known = tiny.json("durations.json")
    for name, seconds in DURATIONS_S.items():
        known["cases"][f"tiny/{name}/cpu"]["measurement"]["wall_s"] = seconds
    tiny.write("durations.json", json.dumps(known))
    conftest = (tiny.path / "conftest.py").read_text(encoding="utf-8")
    tiny.write("conftest.py", conftest + CONFTEST)
    return tiny


def test_a_night_of_workers_that_ctrl_c_ends_is_resumed(two_gpus: TinyProject) -> None:
    """A worker for each GPU and one for the host, which Ctrl-C meets in the last case."""
    command = ("-n", "auto", "--gate", "--perf-report=night", "--perf-durations=durations.json")
    two_gpus.write("interrupt", "")
    ended = two_gpus.run_apart(*command)
    assert ended.status == pytest.ExitCode.INTERRUPTED, ended.text
    cut_off = run_file.read(two_gpus.path / "night/run.json")
    finished = {f"tiny/{name}/cpu" for name in ("one", "two", "three", "spans")}
    assert cut_off.interrupted
    assert {case_id for case_id, case in cut_off.cases.items() if case.measurement} == finished, ended.text
    lines = [json.loads(line) for line in (two_gpus.path / "ran").read_text(encoding="utf-8").splitlines()]
    order = list(dict.fromkeys((worker, name.partition("tiny/")[2].partition("/")[0]) for worker, _, name in lines))
    of_gpus = [case for worker, case in order if worker != "host"]
    assert len(order) == len(DURATIONS_S), "all tests of a case run in one worker"
    assert set(of_gpus[:2]) == {"two", "three"}, "the longest begin"
    assert of_gpus[2:] == ["one"]
    assert order[3:] == [("host", "spans"), ("host", "fed")]
    assert {worker: gpus for worker, gpus, _ in lines} == {"gw0": "GPU-a", "gw1": "GPU-b", "host": "GPU-a,GPU-b"}

    ended = two_gpus.run_apart(*command, "--perf-resume")
    assert ended.status == 1, ended.text  # a gate without records
    run = run_file.read(two_gpus.path / "night/run.json")
    assert (run.interrupted, run.exit_status, run.cases.keys()) == (False, 1, {*finished, "tiny/fed/cpu"})
    assert replace(decide_again(run), problems=run.problems, exit_status=1) == run
    assert all(case.held for case in run.cases.values())
    assert all(run.cases[case_id].measurement == cut_off.cases[case_id].measurement for case_id in finished)

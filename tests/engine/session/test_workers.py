"""Workers of pytest-xdist on made-up machines: one for each GPU, whose cases share the host or have it alone."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from gpugate.errors import OptionError
from gpugate.machine import children, nvml
from gpugate.measurement.torch_flags import TorchFlags, set_default_threads
from gpugate.session import workers as workers_module
from gpugate.session.options import MEASURE, Options
from gpugate.session.perf_session import choose_device
from gpugate.session.workers import (
    GPU_VARIABLE,
    WORKERS,
    Worker,
    Workers,
    check_worker,
    count_workers,
    read_worker,
    start_workers,
)
from gpugate.store import run_file
from gpugate.store.database import open_store
from gpugate.store.store_url import VARIABLE, url_of
from tests.engine.session.test_green_by_absence import XFAIL
from tests.support.tiny_project import PROMISE, QUICK, TinyProject, without_gpu

OPTIONS = Options(
    gate=False,
    update_baselines=False,
    reason="",
    processes=5,
    device="auto",
    seed=None,
    budget_s=6.0,
    json_path=None,
    baselines_path=Path("baselines"),
    command="pytest perf_tests",
    allow_missing=frozenset(),
)


class Config(SimpleNamespace):
    """The form of `-n` in pytest's configuration: `--tx`, once for each worker."""

    def __init__(self, *tx: str, **more: Any) -> None:
        self.stash: dict[Any, Any] = {}
        manager = SimpleNamespace(register=lambda plugin: None)
        super().__init__(option=SimpleNamespace(tx=list(tx)), pluginmanager=manager, **more)

    def getoption(self, name: str, default: object) -> Any:
        return getattr(self.option, name)


def config(*tx: str, **more: Any) -> Any:
    return Config(*tx, **more)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(nvml, "read_near_cores", lambda name: frozenset())
    return lambda count: monkeypatch.setattr(nvml, "list_visible_gpus", lambda: [f"GPU-{n}" for n in range(count)])


@pytest.mark.parametrize(
    ("gpus", "count", "refused"),
    [
        ((), 1, None),
        (("GPU-0", "GPU-1"), 2, None),
        ((), 8, "-n 8 would run 8 tests at once on 0 GPUs, which is no measurement: use -n auto, and"),
        (("GPU-0", "GPU-1"), 3, "-n 3 would run 3 tests at once on 2 GPUs"),
    ],
)
def test_there_are_no_more_workers_than_gpus(gpus: Any, count: int, refused: str | None) -> None:
    asked: Any = SimpleNamespace(workerinput={"workercount": count})
    worker = cast(Worker, SimpleNamespace(gpus=gpus))
    if refused is None:
        check_worker(asked, worker)
        return
    with pytest.raises(OptionError) as caught:
        check_worker(asked, worker)
    assert str(caught.value).startswith(refused)


@pytest.mark.parametrize(
    ("device", "measures", "given"),
    [("auto", True, 2), ("cuda", True, 2), ("cuda:1", True, 0), ("cpu", True, 0), ("auto", False, 0)],
)
def test_workers_that_measure_have_gpus_of_their_own_unless_one_is_named(gpus, device, measures, given: int) -> None:
    gpus(3)
    asked = config("popen", "popen")
    start_workers(asked, None, device, None, measures)
    node: Any = SimpleNamespace(workerinput={})
    asked.stash[WORKERS].pytest_configure_node(node)
    assert len(node.workerinput["gpugate"]["gpus"]) == given


def test_a_child_has_no_workers_whatever_a_project_has_in_its_addopts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "task", MEASURE)
    asked = config("popen", "popen")
    start_workers(asked, None, "auto", None, measures=True)
    assert (asked.option.dist, asked.option.tx, asked.stash) == ("no", [], {})


@pytest.mark.parametrize(
    ("device", "count", "workers"), [("auto", 0, 1), ("auto", 4, 4), ("cuda", 2, 2), ("cpu", 4, 1)]
)
def test_n_auto_is_a_worker_for_each_gpu_or_one(gpus, device: str, count: int, workers: int) -> None:
    gpus(count)
    assert count_workers(device) == workers


def started(workers: Workers, monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """The configuration of a worker of these, after its start."""
    node: Any = SimpleNamespace(workerinput={"workerid": name, "workercount": 2})
    workers.pytest_configure_node(node)
    asked = config(workerinput=node.workerinput)
    monkeypatch.setenv(GPU_VARIABLE, "")
    monkeypatch.setattr(workers_module, "end_with_parent", lambda pid: None)
    start_workers(asked, read_worker(asked), "auto", None, measures=True)
    return asked


@pytest.fixture
def affinity(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The cores that cases were measured on, of a host with eight threads of four cores."""
    found: list[tuple[int, ...]] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(workers_module, "find_usable_cores", lambda: frozenset(range(8)))
    monkeypatch.setattr(workers_module, "find_first_threads", lambda cores: {core: core % 4 for core in cores})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: found.append(tuple(cores)))
    return found


def test_each_worker_has_a_gpu_and_its_share_of_the_cores(
    gpus, affinity: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(3)
    workers = Workers(["GPU-0", "GPU-1"], seed=7)
    configs = {name: started(workers, monkeypatch, name) for name in ("gw0", "gw1")}
    of_both = [read_worker(one) for one in configs.values()]
    assert [(one.name, one.seed, one.gpus[one.place], one.shares[one.place]) for one in of_both] == [
        ("gw0", 7, "GPU-0", (0, 1, 4, 5)),
        ("gw1", 7, "GPU-1", (2, 3, 6, 7)),
    ]
    assert os.environ[GPU_VARIABLE] == "GPU-1"
    workers.pytest_unconfigure()
    assert not workers.folder.exists()


def test_a_case_that_runs_alone_waits_for_the_others_which_begin_no_further_one(
    gpus, affinity: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(2)
    both = Workers(["GPU-0", "GPU-1"])
    configs = [started(both, monkeypatch, name) for name in ("gw0", "gw1")]
    one, other = (read_worker(each) for each in configs)
    assert one is not None
    assert other is not None
    order: list[str] = []

    def measure(name: str, worker: Any, alone: bool) -> None:
        with worker.hold_host(alone):
            order.append(name)

    with one.hold_host(alone=False):
        with other.hold_host(alone=False):
            pass  # side by side
        alone = threading.Thread(target=measure, args=("alone", other, True))
        alone.start()
        alone.join(0.2)
        assert order == []
    later = threading.Thread(target=measure, args=("later", one, False))
    later.start()
    alone.join()
    later.join()
    assert order == ["alone", "later"]
    assert affinity[2:] == [tuple(range(8)), (0, 1, 4, 5)]


@pytest.fixture
def default_threads() -> Iterator[None]:
    """Leaves the threads of torch as they were."""
    found = TorchFlags().num_threads
    yield
    set_default_threads(found)


def test_the_sides_of_a_case_have_a_thread_for_each_physical_core_that_it_runs_on(
    gpus, affinity: list[tuple[int, ...]], default_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(2)
    monkeypatch.delenv("OMP_NUM_THREADS")
    worker = read_worker(started(Workers(["GPU-0", "GPU-1"]), monkeypatch, "gw0"))
    assert worker is not None
    found = []
    for alone in (False, True, False):
        with worker.hold_host(alone):
            TorchFlags().apply()  # as each side is built
            found.append(torch.get_num_threads())
    assert found == [2, 4, 2]


def test_a_worker_refuses_a_gpu_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpu(monkeypatch)
    worker: Any = SimpleNamespace(gpus=("GPU-3",))
    with pytest.raises(OptionError, match="torch does not see one of the GPUs GPU-3: leave it out of"):
        choose_device("auto", worker)


NAMES = ("one", "two", "fed")
OPTIMIZATIONS = ", ".join(f'Optimization("{name}", quick, {{"cpu": 0.01}})' for name in NAMES)
CONFTEST = """
import json
import os
import signal
import time
from pathlib import Path

import torch

from gpugate.machine import nvml
from gpugate.session import perf_session

nvml.list_visible_gpus = lambda: ["GPU-a", "GPU-b"]
nvml.read_near_cores = lambda name: frozenset()
perf_session.choose_device = lambda asked, worker=None: torch.device("cpu")
perf_session.case_needs_host = lambda case, *facts: case.optimization.name == "fed"

def pytest_runtest_setup(item):
    with open("ran", "a") as file:
        words = [os.environ["PYTEST_XDIST_WORKER"], os.environ["CUDA_VISIBLE_DEVICES"], item.name]
        print(json.dumps(words), file=file)
    if "/fed/" in item.name:
        while Path("over").read_text().count("engaged") < 2:  # the other worker still measures
            time.sleep(0.05)
        os.kill(*((os.getppid(), signal.SIGINT) if Path("ctrl-c").exists() else (os.getpid(), signal.SIGKILL)))
        time.sleep(600)

def pytest_runtest_teardown(item):
    with open("over", "a") as file:
        print(item.name, file=file)
"""


@pytest.mark.parametrize(("end", "status"), [("ctrl-c", pytest.ExitCode.INTERRUPTED), ("killed", 1)])
def test_workers_that_end_early_keep_their_cases(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch, end: str, status: int
) -> None:
    """On a machine that pretends to have two GPUs, with sides on the CPU; the night ends in its last case."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a CPU is named by its cores, and workers have shares of them
    tiny.workload(optimizations=OPTIMIZATIONS)
    tiny.write("conftest.py", (tiny.path / "conftest.py").read_text(encoding="utf-8") + CONFTEST)
    command = ("-n", "auto", "--gate", "--perf-report=night")
    tiny.write(end, "")
    ended = tiny.run_apart(*command)
    assert ended.status == status, ended.text
    cut_off = run_file.read(tiny.path / "night/run.json")
    assert cut_off.interrupted
    finished = {case_id for case_id, case in cut_off.cases.items() if case.measurement}
    assert finished == {f"tiny/{name}/cpu" for name in NAMES if name != "fed"}, "it comes last"
    lines = [json.loads(line) for line in (tiny.path / "ran").read_text(encoding="utf-8").splitlines()]
    order = {(worker, name.partition("tiny/")[2].partition("/")[0]) for worker, _, name in lines}
    assert len(order) == len(NAMES), "all tests of a case run in one worker"
    assert {gpus for _, gpus, _ in lines} == {"GPU-a", "GPU-b"}


IMPORTED = """
import os

with open(__file__.replace("tiny.py", "imported"), "a") as file:
    file.write(f"{os.getpid()}\\n")
"""


def test_one_worker_measures_and_the_controller_judges_shows_writes_and_remembers(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict that a worker held decides, whatever mark lets its test pass; the run is in the store once."""
    monkeypatch.delenv(VARIABLE)
    tiny.workload(f"{IMPORTED}{QUICK}", PROMISE.replace('"cpu": 0.01', '"cpu": 500'))
    tiny.write("perf_tests/conftest.py", XFAIL)
    words = ("--perf-json=run.json", "--junitxml=junit.xml", "--gate", "--allow-missing=cuda", "-k", "speedup")
    result = tiny.run("-n", "1", *words)
    assert len((tiny.path / "imported").read_text().splitlines()) == 1, "once, by the worker"
    table = result.text.partition("= gpugate =")[2]
    assert "1 case measured (1 REGRESSED), 1 case skipped" in table
    run = run_file.read(tiny.path / "run.json")
    assert (result.status, run.exit_status, run.interrupted, len(run.problems)) == (1, 1, False, 1), result.text
    assert {case_id: case.held for case_id, case in run.cases.items()}["tiny/quick/cpu"] == ("speedup",)
    assert 'name="speedup_low"' in (tiny.path / "junit.xml").read_text(encoding="utf-8")
    with open_store(url_of(tiny.path), make=False) as store:
        (night,) = store.read_nights()
    assert list(night.cases) == ["tiny/quick/cpu"]

"""Workers of pytest-xdist on made-up machines: at most one for each GPU, and a case stays with one of them."""

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpugate.errors import OptionError
from gpugate.machine import nvml
from gpugate.results.fleet_plan import PlannedCase
from gpugate.results.provenance import Provenance
from gpugate.results.run import RunResult
from gpugate.session import xdist_workers
from gpugate.session.opening import choose_device
from gpugate.session.options import Options
from gpugate.session.worker_orders import CollectedTests, read_orders
from gpugate.session.worker_results import join, pack, unpack
from gpugate.session.xdist_workers import (
    Workers,
    check_worker,
    count_workers,
    start_workers,
)
from gpugate.store import run_file
from gpugate.store.database import open_store
from gpugate.store.nights import night_of
from gpugate.store.run_file import RunFileError
from tests.conftest import TWO_CORES
from tests.support.tiny_project import without_gpu

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
    """The form of `-n` in pytest's configuration: `--tx`, once for each worker or with their number."""

    def __init__(self, *tx: str, **more: Any) -> None:
        self.stash: dict[Any, Any] = {}
        self.registered: list[Any] = []
        manager = SimpleNamespace(register=self.registered.append)
        super().__init__(option=SimpleNamespace(tx=list(tx)), pluginmanager=manager, **more)

    def getoption(self, name: str, default: object) -> Any:
        return getattr(self.option, name)


class Node(SimpleNamespace):
    """A worker as its controller has it, which is one of its kind."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def config(*tx: str, **more: Any) -> Any:
    return Config(*tx, **more)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(nvml, "read_near_cores", lambda name: frozenset())
    return lambda count: monkeypatch.setattr(nvml, "list_visible_gpus", lambda: [f"GPU-{n}" for n in range(count)])


@pytest.mark.parametrize(
    ("tx", "count", "device", "refused"),
    [
        ((), 0, "auto", None),
        (("popen",), 0, "auto", None),
        (("popen", "popen"), 0, "auto", "-n 2 would run 2 tests at once on 0 GPU(s), which is no measurement: use -n"),
        (("2*popen",), 0, "auto", "-n 2 would run 2 tests at once on 0 GPU(s)"),
        (("2*popen",), 1, "auto", "-n 2 would run 2 tests at once on 1 GPU(s)"),
        (("2*popen",), 2, "auto", None),
        (("2*popen",), 2, "cuda", None),
        (("popen", "2*popen//python=python3"), 2, "auto", "-n 3 would run 3 tests at once on 2 GPU(s)"),
        (("popen", "2*popen"), 3, "auto", None),
        (("popen", "popen"), 2, "cuda:1", "-n 2 would run 2 tests at once on cuda:1, with 2 GPU(s) here"),
        (("popen", "popen"), 2, "cpu", "-n 2 would run 2 tests at once on cpu, with 2 GPU(s) here"),
        (("popen",), 2, "cuda:1", None),
        (("popen",), 2, "cpu", None),
    ],
)
def test_there_are_no_more_workers_than_devices(gpus, tx, count: int, device: str, refused: str | None) -> None:
    gpus(count)
    options = replace(OPTIONS, device=device)
    if refused is None:
        start_workers(config(*tx), options, measures=True)
        return
    with pytest.raises(OptionError) as caught:
        start_workers(config(*tx), options, measures=True)
    assert str(caught.value).startswith(refused)


@pytest.mark.parametrize(
    ("device", "count", "workers"), [("auto", 0, 1), ("auto", 4, 4), ("cuda", 2, 2), ("cpu", 4, 1)]
)
def test_n_auto_is_a_worker_for_each_gpu_or_one(gpus, device: str, count: int, workers: int) -> None:
    gpus(count)
    assert count_workers(device) == workers


@pytest.mark.parametrize(("tx", "started"), [((), []), (("popen",), ["popen"])])
def test_one_worker_has_the_whole_host_and_the_order_of_xdist(gpus, tx, started: list[str]) -> None:
    gpus(2)
    asked = config(*tx)
    start_workers(asked, OPTIONS, measures=True)
    assert asked.option.tx == started
    assert [workers.pytest_xdist_make_scheduler() for workers in asked.registered] == [None] * len(started)


def test_each_of_several_workers_sees_its_gpu_and_the_last_one_the_host(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(3)
    monkeypatch.setattr(xdist_workers, "find_usable_cores", lambda: frozenset(range(8)))
    monkeypatch.setattr(xdist_workers, "find_first_threads", lambda cores: {core: core % 4 for core in cores})
    asked = config("2*popen")
    options = replace(OPTIONS, seed=7, json_path=Path("/clone/run.json"), report_path=Path("/clone/night"))
    start_workers(asked, options, measures=True)
    assert asked.option.tx == ["2*popen", "popen//id=host"]
    (workers,) = asked.registered
    specs = [SimpleNamespace(env={}) for _ in range(3)]
    workers.pytest_xdist_setupnodes(specs)
    assert [spec.env for spec in specs] == [
        {"CUDA_VISIBLE_DEVICES": gpus} for gpus in ("GPU-0", "GPU-1", "GPU-0,GPU-1")
    ]
    found = []
    for spec in specs:
        pinned: list[Any] = []
        channel = SimpleNamespace(send=pinned.append, waitclose=lambda: None)
        gateway = SimpleNamespace(spec=spec, remote_exec=lambda source, channel=channel: channel)
        workers.pytest_xdist_newgateway(gateway)
        node = Node(gateway=gateway, nodemanager=SimpleNamespace(specs=specs), workerinput={})
        workers.pytest_configure_node(node)
        orders = read_orders(SimpleNamespace(workerinput=node.workerinput))
        assert orders is not None
        assert (orders.seed, orders.host_cores, orders.cores, orders.resume) == (7, 8, 4, False)
        assert replace(OPTIONS, worker=orders).result_paths == options.result_paths
        found.append((*pinned, orders.gpus, workers.is_host(node)))
    assert found == [
        ((0, 1, 4, 5), "GPU-0", False),
        ((2, 3, 6, 7), "GPU-1", False),
        (tuple(range(8)), "GPU-0,GPU-1", True),
    ]
    workers.pytest_unconfigure()
    assert not workers.folder.exists()


def test_a_worker_refuses_a_gpu_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpu(monkeypatch)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(
        OptionError, match="a worker was given the GPU GPU-3, which torch does not see: leave it out of"
    ):
        choose_device("auto", "GPU-3")


def test_plain_tests_have_as_many_workers_as_they_like(gpus) -> None:
    gpus(1)
    asked = config("8*popen")
    start_workers(asked, OPTIONS, measures=False)
    assert asked.option.tx == ["8*popen"]
    (workers,) = asked.registered
    assert workers.pytest_xdist_make_scheduler() is None
    alone: Any = SimpleNamespace(workerinput={"workercount": 1})
    check_worker(alone, workers.orders)
    several: Any = SimpleNamespace(workerinput={"workercount": 8})
    with pytest.raises(OptionError, match=r"-n 8 would run 8 tests at once, .* such as pytest perf_tests -n auto"):
        check_worker(several, workers.orders)


def test_workers_do_not_record(gpus) -> None:
    gpus(2)
    recording = replace(OPTIONS, update_baselines=True)
    start_workers(config(), recording, measures=True)
    with pytest.raises(OptionError, match=r"--update-baselines with -n 1 would record workers .* use -n 0"):
        start_workers(config("popen"), recording, measures=True)


def test_a_worker_checks_nothing_of_its_own_and_ends_with_its_controller(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(0)
    parents: list[int] = []
    monkeypatch.setattr(xdist_workers, "end_with_parent", parents.append)
    start_workers(config("8*popen", workerinput={"workerid": "gw3"}), OPTIONS, measures=True)
    assert parents == [os.getppid()]


@pytest.mark.parametrize("known", ["file", "store", "damaged"])
def test_the_plan_of_workers_has_the_durations_of_a_run_or_of_the_store(
    gpus, tmp_path: Path, gpu_run: RunResult, known: str
) -> None:
    gpus(2)
    measured = [case for case in gpu_run.cases.values() if case.measurement is not None][:2]
    for case, seconds in zip(measured, (3.0, 40.0), strict=True):
        case.measurement = replace(case.measurement, wall_s=seconds)  # type: ignore[type-var]
    gpu_run.provenance = Provenance()
    run_file.write(tmp_path / "run.json", gpu_run)
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    with closing(open_store(url)) as store:
        store.add(night_of(gpu_run, ""))
    if known == "damaged":
        (tmp_path / "store.sqlite").write_text("no database", encoding="utf-8")
    path = tmp_path / "run.json" if known == "file" else None
    workers = Workers(replace(OPTIONS, durations_path=path, store_url=url), ("GPU-0", "GPU-1"))
    cases = tuple(PlannedCase(case.case_id, case.case_id) for case in measured)
    groups = {f"test[{case.case_id}]": case.case_id for case in measured}
    assert workers.plan() == ([], {})
    workers.tests_path.write_text(CollectedTests("nvidia-h200", cases, groups, "").text(), encoding="utf-8")
    planned, of_tests = workers.plan()
    assert of_tests == groups
    assert [group.duration_s for group in planned] == ([1.0, 1.0] if known == "damaged" else [3.0, 40.0])


@pytest.mark.parametrize(("remembers", "seconds"), [(True, 10.0), (False, 40.0)])
def test_workers_that_remember_proofs_are_planned_without_their_time(
    gpus, tmp_path: Path, gpu_run: RunResult, remembers: bool, seconds: float
) -> None:
    gpus(2)
    case = next(case for case in gpu_run.cases.values() if case.measurement is not None)
    case.measurement = replace(case.measurement, wall_s=40.0, spent_s={"proving": 30.0})  # type: ignore[type-var]
    run_file.write(tmp_path / "run.json", gpu_run)
    options = replace(OPTIONS, durations_path=tmp_path / "run.json", proofs_path=tmp_path if remembers else None)
    workers = Workers(options, ("GPU-0", "GPU-1"))
    tests = CollectedTests("nvidia-h200", (PlannedCase(case.case_id, case.case_id),), {}, "")
    workers.tests_path.write_text(tests.text(), encoding="utf-8")
    assert [group.duration_s for group in workers.plan()[0]] == [seconds]


def test_durations_that_cannot_be_read_are_refused(gpus, tmp_path: Path) -> None:
    gpus(2)
    with pytest.raises(RunFileError, match=r"absent\.json .*: give a file that --perf-json wrote"):
        start_workers(config("2*popen"), replace(OPTIONS, durations_path=tmp_path / "absent.json"), measures=True)


def test_what_workers_say_of_a_gate_is_joined_and_said_once() -> None:
    run = None
    for name, problem in (("1", "the absence of a"), ("2", "the error of b")):
        of_worker = RunResult(TWO_CORES, f"2030-01-01T00:00:0{name}+00:00", seed=1)
        of_worker.problems = ["module 'c' skipped itself", problem]
        run = join(run, unpack(pack(of_worker)))
    assert run is not None
    assert run.problems == ["module 'c' skipped itself", "the absence of a", "the error of b"]

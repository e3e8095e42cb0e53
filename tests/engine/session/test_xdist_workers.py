"""Workers of pytest-xdist on made-up machines: at most one for each GPU, and a case stays with one of them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpugate.catalogue import Catalogue
from gpugate.errors import OptionError
from gpugate.machine import nvml
from gpugate.results.run import RunResult
from gpugate.session import selection
from gpugate.session.options import Options
from gpugate.session.worker_results import join, pack
from gpugate.session.xdist_workers import check_workers
from gpugate.workload import Context, Optimization, Side, Size, Workload
from tests.conftest import TWO_CORES

OPTIONS = Options(
    gate=False,
    update_baselines=False,
    reason="",
    processes=5,
    device="auto",
    seed=None,
    budget_s=6.0,
    attempts=1,
    json_path=None,
    baselines_path=Path("baselines"),
    command="pytest perf_tests",
    allow_missing=frozenset(),
)


def config(*tx: str, **more: Any) -> Any:
    """The form of `-n` in pytest's configuration: `--tx`, once for each worker or with their number."""
    options = {"tx": list(tx)}
    return SimpleNamespace(getoption=lambda name, default: options[name], option=SimpleNamespace(dist="load"), **more)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda count: monkeypatch.setattr(nvml, "gpu_count", lambda: count)


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
        check_workers(config(*tx), options)
        return
    with pytest.raises(OptionError) as caught:
        check_workers(config(*tx), options)
    assert str(caught.value).startswith(refused)


@pytest.mark.parametrize(("tx", "dist"), [((), "load"), (("popen",), "load"), (("2*popen",), "loadgroup")])
def test_several_workers_share_the_tests_by_case(gpus, tx, dist: str) -> None:
    gpus(2)
    asked = config(*tx)
    check_workers(asked, OPTIONS)
    assert asked.option.dist == dist


def test_workers_do_not_record(gpus) -> None:
    gpus(2)
    recording = replace(OPTIONS, update_baselines=True)
    check_workers(config(), recording)
    with pytest.raises(OptionError, match=r"--update-baselines with -n 1 would record workers .* use -n 0"):
        check_workers(config("popen"), recording)


def test_a_worker_checks_nothing_of_its_own(gpus) -> None:
    gpus(0)
    check_workers(config("8*popen", workerinput={"workerid": "gw3"}), OPTIONS)


def build(context: Context) -> Side:
    return Side(lambda inputs: inputs)


def test_what_workers_say_of_a_gate_is_joined_and_said_once() -> None:
    run = None
    for name, problem in (("1", "the absence of a"), ("2", "the error of b")):
        of_worker = RunResult(TWO_CORES, f"2030-01-01T00:00:0{name}+00:00", seed=1)
        of_worker.problems = ["module 'c' skipped itself", problem]
        run = join(run, pack(of_worker))
    assert run is not None
    assert run.problems == ["module 'c' skipped itself", "the absence of a", "the error of b"]


@pytest.mark.parametrize("has_xdist", [True, False])
def test_all_tests_of_a_case_are_one_group_of_xdist(monkeypatch: pytest.MonkeyPatch, has_xdist: bool) -> None:
    fast = Optimization("fast", build, {"cuda": 1.0, "cpu": 1.0})
    sizes = {"cuda": Size(1, 0, 0), "cpu": Size(1, 0, 0)}
    known = Catalogue()
    monkeypatch.setattr(
        known, "load", lambda: known._add(Workload("net", build, lambda _, index: index, sizes, (fast,)))
    )
    monkeypatch.setattr(selection, "catalogue", known)
    made: list[Any] = []
    ours = SimpleNamespace(func=SimpleNamespace(__module__="gpugate.fixtures"))
    metafunc: Any = SimpleNamespace(
        fixturenames=["workload"],
        definition=SimpleNamespace(iter_markers=lambda name: ()),
        _arg2fixturedefs={"workload": [ours]},
        config=SimpleNamespace(pluginmanager=SimpleNamespace(hasplugin=lambda name: has_xdist and name == "xdist")),
        parametrize=lambda name, parameters, **_: made.extend(parameters),
    )
    selection.parametrize(metafunc)
    marks = {parameter.id: {mark.name: mark.args for mark in parameter.marks} for parameter in made}
    group = [{"xdist_group": (case_id,)} if has_xdist else {} for case_id in ("net/fast/cuda", "net/fast/cpu")]
    assert marks == {"net/fast/cuda": {"gpu": (), **group[0]}, "net/fast/cpu": group[1]}

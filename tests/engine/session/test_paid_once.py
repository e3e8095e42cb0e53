"""Costs that a night pays once: code that was compiled in one process, and the imports of a worker."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpugate.session.confirm import run_fresh
from tests.engine.session.test_xdist_workers import OPTIONS
from tests.support.tiny_project import PROMISE, QUICK, TinyProject

COMPILED = """
import os

from torch._dynamo.utils import counters
from torch._inductor import config

config.cpp_cache_precompile_headers = False  # which takes longer than the one kernel here


def quick(context):
    def step(x):
        clock.sleep(1 / 1e3)
        return compute(x)

    counters.clear()
    compute = torch.compile(lambda x: torch.nn.functional.gelu(x + x) * 0 + 2 * x, dynamic=False)
    compute(torch.zeros(32, 32))
    found = counters["inductor"]
    with Path(__file__).with_name("compiled").open("a") as file:
        file.write(f"{os.getpid()} {found['fxgraph_cache_miss']} {found['fxgraph_cache_hit']}\\n")
    return Side(step)
"""
IMPORTED = """
import os

with open(__file__.replace("tiny.py", "imported"), "a") as file:
    file.write(f"{os.getpid()}\\n")
"""


def test_a_fresh_process_compiles_nothing_that_the_session_has_compiled(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
    tiny.workload(COMPILED, PROMISE)
    assert tiny.run_apart().status == 0
    run_fresh(OPTIONS, torch.device("cpu"), tiny.path, ["perf_tests/test_promises.py"], tiny.path / "fresh.json")
    first: dict[str, list[str]] = {}
    for line in (tiny.path / "compiled").read_text().splitlines():
        process, *missed_and_hit = line.split()
        first.setdefault(process, missed_and_hit)
    assert list(first.values()) == [["1", "0"], ["0", "1"]]


def test_a_worker_imports_the_workloads_once_for_all_of_its_cases(tiny: TinyProject) -> None:
    tiny.workload(f"{IMPORTED}{QUICK}", f"{PROMISE}, {PROMISE.replace('quick', 'other', 1)}")
    ended = tiny.run("-n", "1", "--perf-json", "run.json")
    assert ended.status == 0, ended.text
    assert [case["skipped"] is None for case in tiny.json()["cases"].values()].count(True) == 2
    assert len(Path(tiny.path, "imported").read_text().splitlines()) == 1  # and the controller imports none

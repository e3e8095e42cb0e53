"""A source hash depends on the work of a workload, not on its promises."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gpugate.measurement.run import run_proofs
from gpugate.store.source_hash import proof_hash, source_hash
from gpugate.workload import Case, Context, Contract, Limit, Optimization, Proof, Side, Size, Workload
from workloads.resnet18_training import WORKLOADS


@dataclass(frozen=True)
class Plan:
    batch: int = 8
    dtype: torch.dtype = torch.float16


def build(plan: Plan, context: Context) -> Side:
    return Side(lambda inputs: inputs * plan.batch)


def made_by(work: object, context: Context) -> Side:
    return Side(lambda inputs: inputs)


def once(inputs: torch.Tensor) -> torch.Tensor:
    return inputs


def inputs(context: Context, index: int) -> torch.Tensor:
    return torch.ones(context.items)


FAST = Optimization("fast", partial(build, Plan()), {"cpu": 1.5})
WORKLOAD = Workload("made-up", partial(build, Plan(batch=1)), inputs, {"cpu": Size(4, 1.0, 1.0)}, (FAST,))


def of(**changed: Any) -> str:
    return source_hash(replace(WORKLOAD, optimizations=(replace(FAST, **changed),)))


def test_a_hash_is_of_the_work_and_not_of_what_is_promised() -> None:
    contract = {"cpu": Contract(limits=(Limit("kernels", at_most=1),))}
    assert of(min_speedup={"cpu": 2.0}, why="it says why", contract=contract) == of()
    plans = [partial(build, plan) for plan in (Plan(batch=16), Plan(dtype=torch.bfloat16))]
    calls = [partial(made_by, work) for work in (once, subprocess.run)]
    assert of(build=calls[0]) == of(build=partial(made_by, once))
    assert len({of(), *(of(build=other) for other in (*plans, *calls))}) == 5
    assert source_hash(replace(WORKLOAD, sizes={"cpu": Size(8, 1.0, 1.0)})) != source_hash(WORKLOAD)


def test_it_is_the_same_in_every_process(tmp_path: Path) -> None:
    """No address, and no order of a hash table, gets into it."""
    code = (
        "from gpugate.store.source_hash import source_hash\n"
        "from workloads.resnet18_training import WORKLOADS\n"
        "print(source_hash(WORKLOADS[0]))"
    )
    root = Path(__file__).parents[3]
    environment = {"PYTHONHASHSEED": "1", "PYTHONPATH": str(root), "HOME": str(tmp_path)}
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=root, env=environment
    )
    assert elsewhere.stdout.strip() == source_hash(WORKLOADS[0])


def test_a_workload_of_the_command_line_has_a_hash() -> None:
    space: dict[str, Callable[..., Side]] = {}
    exec("def build(context): ...", {"__name__": "typed_in"}, space)  # noqa: S102
    fast = Optimization("fast", space["build"], {"cpu": 1.0})
    assert len(source_hash(replace(WORKLOAD, baseline=space["build"], inputs=inputs, optimizations=(fast,)))) == 16


PROOF = """
from functools import wraps
from learning import lessons

def remind(function):
    @wraps(function)
    def wrapped(*words):
        return function(*words)

    return wrapped

def make_show(words, *helpers):
    @remind
    def show(context, least=0.97):
        return f"{words} after {lessons()} lessons with {helpers}"  # a comment

    return show
"""
LESSONS = "def lessons():\n    return 7\n\ndef other():\n    return 1\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module of a proof, and another that it uses: neither is installed."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "proving.py").write_text(PROOF)
    (tmp_path / "learning.py").write_text(LESSONS)
    return tmp_path


def hash_of(*captured: object, run: Callable[..., object] = run_proofs, **promises: object) -> str:
    """The hash of a proof of `proving`, which is loaded anew, with the values that it captures."""
    for name in ("proving", "learning"):
        sys.modules.pop(name, None)
    show = importlib.import_module("proving").make_show(*captured)
    optimization = replace(FAST, proofs=(Proof("it learns", show),), **promises)  # type: ignore[arg-type]
    return proof_hash(Case(replace(WORKLOAD, optimizations=(optimization,)), optimization, "cpu"), run)


@pytest.mark.parametrize(
    ("module", "old", "new", "counts"),
    [
        ("proving", "after", "in", True),
        ("proving", "0.97", "0.9", True),
        ("proving", "*words", "*others", True),
        ("proving", "a comment", "another", False),
        ("learning", "7", "8", True),
        ("learning", "return 1", "return 2", False),
    ],
    ids=["its code", "a default", "a decorator", "a comment", "code that is not installed", "code that is not used"],
)
def test_an_edit_of_its_work_changes_the_hash_of_a_proof(
    modules: Path, module: str, old: str, new: str, counts: bool
) -> None:
    before, path = hash_of("98 %"), modules / f"{module}.py"
    path.write_text(path.read_text().replace(old, new))
    assert (hash_of("98 %", min_speedup={"cpu": 2.0}) != before) is counts


@pytest.mark.parametrize("other", [("99 %",), ("98 %", once), ("98 %", partial(once, 1)), ("98 %", Plan())])
def test_another_captured_value_changes_the_hash_of_a_proof(modules: Path, other: tuple[object, ...]) -> None:
    assert hash_of(*other) != hash_of("98 %")


def test_other_code_that_runs_proofs_and_another_build_change_the_hash_of_a_proof(modules: Path) -> None:
    before = hash_of("98 %")
    assert hash_of("98 %", run=once) != before
    assert hash_of("98 %", build=partial(build, Plan(batch=16))) != before

"""A source hash depends on the work of a workload, not on its promises."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from gpugate.store.source_hash import source_hash
from gpugate.workload import Context, Contract, Limit, Optimization, Side, Size, Workload
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


def of(optimization: Optimization) -> str:
    return source_hash(replace(WORKLOAD, optimizations=(optimization,)))


@pytest.mark.parametrize(
    "other",
    [
        replace(FAST, min_speedup={"cpu": 2.0}),
        replace(FAST, why="it says why"),
        replace(FAST, contract={"cpu": Contract(limits=(Limit("kernels", at_most=1),))}),
    ],
)
def test_what_is_promised_changes_no_hash(other: Optimization) -> None:
    assert of(other) == of(FAST)


@pytest.mark.parametrize("plan", [Plan(batch=16), Plan(dtype=torch.bfloat16)])
def test_another_plan_is_another_hash(plan: Plan) -> None:
    assert of(replace(FAST, build=partial(build, plan))) != of(FAST)


def test_another_number_of_items_is_another_hash() -> None:
    assert source_hash(replace(WORKLOAD, sizes={"cpu": Size(8, 1.0, 1.0)})) != source_hash(WORKLOAD)


def test_what_a_build_is_given_to_call_counts_with_its_module() -> None:
    here, elsewhere = (replace(FAST, build=partial(made_by, work)) for work in (once, subprocess.run))
    assert of(here) != of(elsewhere)
    assert of(here) == of(replace(FAST, build=partial(made_by, once)))


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

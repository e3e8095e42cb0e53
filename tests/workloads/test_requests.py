"""Requests are answered alike one by one, together and in int8."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from gpugate.catalogue import check
from gpugate.workload import Context
from workloads import requests

CONTEXT = Context(torch.device("cpu"), items=5, seed=3, cache_dir=Path())
(WORKLOAD,) = requests.WORKLOADS


def test_can_be_measured_as_declared() -> None:
    check(WORKLOAD)


@pytest.mark.parametrize("name", ["batched", "int8"])
def test_answers_agree_with_those_one_by_one(name: str) -> None:
    optimization = WORKLOAD.optimization(name)
    inputs = requests.requests(CONTEXT, 0)
    expected = requests.one_by_one(CONTEXT).step(inputs)
    side = optimization.build(CONTEXT)
    error = float((side.step(inputs) - expected).norm() / expected.norm())
    assert error <= optimization.tolerated.relative_l2
    assert (error > 1e-3) == (name == "int8")
    assert side.engaged() is None


def test_int8_names_a_layer_that_kept_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.ao.quantization.quantize_dynamic", lambda model, layers, dtype: model)
    assert requests.int8(CONTEXT).engaged() == "0, 2 has float weights"


def test_the_network_depends_on_the_seed() -> None:
    other = requests.network(replace(CONTEXT, seed=4))
    assert not next(iter(other.parameters())).equal(next(iter(requests.network(CONTEXT).parameters())))
    assert isinstance(other, nn.Module)

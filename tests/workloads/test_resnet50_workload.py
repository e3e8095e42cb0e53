"""The ResNet-50 workload as far as a CPU goes: work, weights, checkpoints, and what `engaged` notices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn

import workloads.resnet50_inference as resnet50_inference
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.workload import Context
from tests.support.small_models import small_models
from workloads.parts.compiled import compile_counted, miscount

BATCH_128, BATCH_1 = resnet50_inference.WORKLOADS


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with small_models():
        yield


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(device=torch.device("cpu"), items=2, seed=0, cache_dir=tmp_path)


def test_a_lost_layout_or_precision_is_noticed(context):
    side = resnet50_inference.channels_last(context)
    side.model.layer2.to(memory_format=torch.contiguous_format)
    assert "layer2.0.conv2.weight is not in torch.channels_last" in side.engaged()
    side = resnet50_inference.bf16(context)
    side.model.fc.float()
    assert "fc.weight is torch.float32" in side.engaged()


def test_batch_norm_is_far_from_the_identity(context):
    for name, norm in resnet50_inference.resnet50(context).named_modules():
        if isinstance(norm, nn.BatchNorm2d):
            for value, identity in ((norm.weight, 1), (norm.bias, 0), (norm.running_mean, 0), (norm.running_var, 1)):
                assert (value - identity).abs().mean() > 1e-3, name
            assert not norm.training


def test_each_side_changes_the_switches_that_its_name_says(context):
    switches = {}
    sides = resnet50_inference.baseline, resnet50_inference.strict_fp32, resnet50_inference.fp16
    for build in (*sides, resnet50_inference.channels_last_fp16):
        TorchFlags().apply()
        build(context)
        switches[build.__name__] = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    assert switches == {
        "baseline": (True, False),
        "strict_fp32": (False, False),
        "fp16": (True, False),
        "channels_last_fp16": (True, False),
    }


def test_a_checkpoint_replaces_the_weights(context, tmp_path):
    torch.manual_seed(5)
    weights = torchvision.models.resnet50().state_dict()
    torch.save(weights, tmp_path / "mine.pt")
    model = resnet50_inference.resnet50(replace(context, settings={"resnet50-weights": str(tmp_path / "mine.pt")}))
    assert torch.equal(model.state_dict()["fc.weight"], weights["fc.weight"])
    assert not model.training


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(("breaks", "sizes"), [(True, [2]), (False, [2, 3])])
def test_a_graph_break_and_another_shape_are_noticed(breaks: bool, sizes: list[int]) -> None:
    def forward(x: Tensor) -> Tensor:
        y = x + 1
        if breaks:
            torch._dynamo.graph_break()
        return y * 2

    graphs: list[bool] = []
    run = compile_counted(forward, graphs)
    for size in sizes:
        run(torch.ones(size))
    assert miscount(graphs) == "2 graphs were compiled, not 1: graph breaks or recompilations"

"""A real TensorRT builds, keeps, runs and captures a small network in each precision."""

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import nn

from workloads.parts.graph_capture import recorded
from workloads.parts.tensorrt_engine import Engine, Precision, build_engine, why_not

MISSING = why_not(0) if torch.cuda.is_available() else "it runs on a GPU, and torch sees none"
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")
ERRORS = {"fp32": 1e-5, "tf32": 2e-3, "fp16": 3e-3, "int8": 2e-2}  # relative L2, against PyTorch on the CPU
SHAPE = (8, 3, 64, 64)


def net() -> nn.Module:
    torch.manual_seed(0)
    convolutions = nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()


def engine(precision: Precision, cache_dir: Path) -> Engine:
    if precision == "int8" and find_spec("onnxruntime") is None:
        pytest.skip("the package onnxruntime is missing: pip install 'gpugate[tensorrt]'")
    example, calibration = torch.zeros(SHAPE, device="cuda"), [torch.randn(SHAPE, generator=seeded(2))]
    return build_engine(copy.deepcopy(net()), example, precision, cache_dir, calibration)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("precision", get_args(Precision))
@torch.inference_mode()
def test_an_engine_computes_what_the_model_does(precision: Precision, cache_dir: Path) -> None:
    inputs = torch.randn(SHAPE, generator=seeded(1))
    expected, built = net()(inputs), engine(precision, cache_dir)
    output = built(inputs.cuda()).cpu()
    assert (output - expected).norm() / expected.norm() < ERRORS[precision]
    layers = built.layers()
    assert sum("Conv" in name and "Relu" in name for name in layers) == 2, layers


@torch.inference_mode()
def test_a_kept_plan_is_loaded_and_captured_in_memory_of_torch(cache_dir: Path) -> None:
    engine("fp16", cache_dir)
    plans = set(cache_dir.rglob("*.plan"))
    before = torch.cuda.memory_allocated()
    loaded = engine("fp16", cache_dir)
    assert set(cache_dir.rglob("*.plan")) == plans
    assert torch.cuda.memory_allocated() > before
    inputs = torch.randn(SHAPE, generator=seeded(1)).cuda()
    graph, output = recorded(lambda: loaded(inputs), torch.cuda.Stream())
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, loaded(inputs))

"""The cuDNN rewrite, proved on a CPU: same numbers, one call per convolution, nothing left unfused."""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet50
from torchvision.models.segmentation import fcn_resnet50

from tests.support.plain_operators import PLAIN
from workloads.parts.cudnn_fusion import (
    STEM_CHANNELS,
    FusedConv,
    FusedMaxPool,
    LastConv,
    Operators,
    fuse,
    max_pool,
)


class Calls(list[str]):
    """CPU operators that note the name of each call."""

    def operators(self) -> Operators:
        names = ("conv", "conv_relu", "conv_add_relu", "pool_relu")
        counted = {name: partial(self._call, name, getattr(PLAIN, name)) for name in names}
        return Operators(max_pool=max_pool, **counted)

    def _call(self, name: str, run: Callable[..., Tensor], x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        self.append(name)
        out = run(x, weight, *rest)
        assert name != "conv_add_relu" or rest[0].shape == out.shape, "cuDNN adds tensors of one shape only"
        return out


def _randomized(model: nn.Module) -> nn.Module:
    """Every BatchNorm folds to something else than the identity, without letting activations grow."""
    generator = torch.Generator().manual_seed(1)
    for name, norm in model.named_modules():
        if isinstance(norm, nn.BatchNorm2d):
            low, high = (0.1, 0.3) if name.endswith("bn3") else (0.5, 1.5)
            for tensor, (start, end) in {
                norm.weight: (low, high),
                norm.bias: (-0.2, 0.8),
                norm.running_mean: (-0.3, 0.3),
                norm.running_var: (0.5, 2.0),
            }.items():
                tensor.detach().uniform_(start, end, generator=generator)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return _randomized(resnet50())


def _padded(pictures: Tensor) -> Tensor:
    return F.pad(pictures, (0, 0, 0, 0, 0, STEM_CHANNELS - 3))


def _relative_l2(out: Tensor, reference: Tensor) -> float:
    return float((out - reference).norm() / reference.norm())


@torch.inference_mode()
def test_the_logits_stay_and_53_convolutions_remain(model):
    pictures = torch.randn(2, 3, 96, 96)
    calls = Calls()
    fused = fuse(model, calls.operators())
    assert _relative_l2(fused(_padded(pictures)), model(pictures)) < 1e-5
    assert Counter(calls) == {"conv": 5, "pool_relu": 1, "conv_relu": 32, "conv_add_relu": 16}


def test_a_max_pool_that_others_share_the_relu_with_stays_alone():
    def both_readers(net: _Net, x: Tensor) -> Tensor:
        inner = net.relu(net.conv(x))
        return net.relu(net.other(net.floor_pool(inner)) + net.floor_pool(inner))

    calls = Calls()
    net = _Net(both_readers).eval()
    pictures = torch.randn(1, 3, 8, 8)
    assert _relative_l2(fuse(net, calls.operators())(_padded(pictures)), net(pictures)) < 1e-5
    assert calls == ["conv_relu", "conv_add_relu"]


@torch.inference_mode()
def test_a_segmentation_network_is_fused_entirely():
    """Dilated convolutions, and a head of convolutions with dropout between them, the last one without a ReLU."""
    torch.manual_seed(0)
    whole = _randomized(fcn_resnet50(weights=None, weights_backbone=None, num_classes=2))
    backbone = nn.Sequential(OrderedDict(whole.backbone.named_children()))
    coarse = nn.Sequential(backbone, whole.classifier).eval()
    calls, pictures = Calls(), torch.randn(1, 3, 64, 64)
    fused = fuse(coarse, calls.operators())
    assert _relative_l2(fused(_padded(pictures)), coarse(pictures)) < 1e-5
    assert Counter(calls) == {"conv": 6, "pool_relu": 1, "conv_relu": 33, "conv_add_relu": 16}
    kinds = Counter(type(module) for module in fused.modules() if not list(module.children()))
    assert kinds == {FusedConv: 54, LastConv: 1, FusedMaxPool: 1}
    assert {module.geometry.dilation for module in fused.modules() if isinstance(module, FusedConv)} >= {(2, 2), (4, 4)}
    assert not [node for node in fused.graph.nodes if node.op == "call_function"]


class _Net(nn.Module):
    """A network of one convolution of a picture and a further operation."""

    def __init__(self, then, channels: int = 3) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(channels, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.twin = nn.Conv2d(channels, 4, 3, padding=1)
        self.bn, self.relu, self.pool = nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)
        self.floor_pool, self.dropout = nn.MaxPool2d(2), nn.Dropout(0.9)
        self.bare = nn.BatchNorm2d(4, track_running_stats=False)
        self.reflect = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self, x)


def _two_readers(net: _Net, x: Tensor) -> Tensor:
    inner = net.conv(x)
    return net.relu(net.bn(inner)) + inner


@pytest.mark.parametrize(
    ("then", "named"),
    [
        (lambda net, x: net.conv(x), "conv"),
        (lambda net, x: net.bn(net.relu(net.conv(x))), "bn"),
        (lambda net, x: net.relu(net.conv(x)) * 2, "mul"),
        (lambda net, x: net.relu(net.relu(net.conv(x))), "conv"),
        (lambda net, x: net.pool(net.relu(net.conv(x))), "pool"),
        (lambda net, x: net.relu(net.bare(net.conv(x))), "running statistics"),
        (lambda net, x: net.relu(net.reflect(net.relu(net.conv(x)))), "reflect"),
        (lambda net, x: net.relu(net.conv(x) + net.conv(x)), "more than once"),
        (lambda net, x: net.relu(net.conv(x) + net.twin(x)), "'x' must go to one convolution"),
        (lambda net, x: net.relu(net.conv(net.floor_pool(x))), "'x' must go to one convolution"),
        (lambda net, x: net.other(net.relu(net.conv(x))).relu(), "other"),
        (lambda net, x: operator.add(net.relu(net.conv(x)), 1), "add"),
        (_two_readers, "bn"),
    ],
)
def test_a_pattern_that_cannot_be_fused_is_refused_in_one_sentence(then, named):
    with pytest.raises(ValueError, match=named) as raised:
        fuse(_Net(then).eval(), Calls().operators())
    assert "\n" not in str(raised.value)

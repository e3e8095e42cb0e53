"""Rewrites an eval ResNet so that every convolution is one cuDNN kernel: folded BatchNorm, bias, addition and ReLU.

Patterns, matched in the torch.fx graph from each ReLU backwards:

    conv (-> bn) -> relu                          conv+bias+ReLU
    conv (-> bn) -> add(other) -> relu            conv+bias+add+ReLU, `other` computed elsewhere
    conv (-> bn) -> add(conv (-> bn)) -> relu     the same; `other` is a plain convolution without a bias, because
                                                  cuDNN would add one in a kernel of its own: it moves to the first

The operators are a parameter, so that the rewrite can be proved on a CPU: cuDNN's exist on CUDA only.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

# cuDNN's tensor-core convolutions read 16 bytes at a time, 8 values of FP16: a stem with 3 channels makes it pad the
# input in a kernel of its own, one with 8 does not.
STEM_CHANNELS = 8
ADDITIONS = (operator.add, operator.iadd, torch.add)
RELUS = (F.relu, torch.relu)


@dataclass(frozen=True)
class Geometry:
    """How a convolution walks its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


@dataclass(frozen=True)
class Operators:
    """What the rewritten model calls. Tensors are [N, C, H, W], weights [out, in / groups, h, w], biases [out].

    `conv(x, weight, geometry)`; `conv_relu(x, weight, bias, geometry)`; `conv_add_relu(x, weight, z, bias, geometry)`
    is relu(conv(x) + z + bias); `max_pool(x, kernel, stride, padding)`.
    """

    conv: Callable[[Tensor, Tensor, Geometry], Tensor]
    conv_relu: Callable[[Tensor, Tensor, Tensor, Geometry], Tensor]
    conv_add_relu: Callable[[Tensor, Tensor, Tensor, Tensor, Geometry], Tensor]
    max_pool: Callable[[Tensor, int, int, int], Tensor]


def conv(x: Tensor, weight: Tensor, at: Geometry) -> Tensor:
    return F.conv2d(x, weight, None, at.stride, at.padding, at.dilation, at.groups)


def cudnn_conv_relu(x: Tensor, weight: Tensor, bias: Tensor, at: Geometry) -> Tensor:
    return torch.cudnn_convolution_relu(x, weight, bias, at.stride, at.padding, at.dilation, at.groups)


def cudnn_conv_add_relu(x: Tensor, weight: Tensor, z: Tensor, bias: Tensor, at: Geometry) -> Tensor:
    # cuDNN computes relu(conv(x) + alpha z + bias); a z in another memory format would cost a copy.
    return torch.cudnn_convolution_add_relu(
        x, weight, z, 1.0, bias, at.stride, at.padding, at.dilation, at.groups
    )


@functools.lru_cache(maxsize=1)
def _compiled_max_pool() -> Callable[[Tensor, int, int, int], Tensor]:
    def max_pool(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        return F.max_pool2d(x, kernel, stride, padding)

    return torch.compile(max_pool, dynamic=False, fullgraph=True)


def triton_max_pool(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Inductor's kernel: PyTorch's own for FP16 channels_last reaches a seventh of the memory bandwidth."""
    return _compiled_max_pool()(x, kernel, stride, padding)


CUDNN = Operators(conv, cudnn_conv_relu, cudnn_conv_add_relu, triton_max_pool)


class FusedConv(nn.Module):
    """A convolution with what was fused into it: nothing, bias+ReLU, or bias+addition+ReLU."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, folded: Folded, relu: bool, operators: Operators) -> None:
        super().__init__()
        self.register_buffer("weight", folded.weight)
        self.register_buffer("bias", folded.bias if relu else None)
        self.geometry = folded.geometry
        self.operators = operators

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        if self.bias is None:
            return self.operators.conv(x, self.weight, self.geometry)
        if z is None:
            return self.operators.conv_relu(x, self.weight, self.bias, self.geometry)
        return self.operators.conv_add_relu(x, self.weight, z, self.bias, self.geometry)


class FusedMaxPool(nn.Module):
    def __init__(self, pool: nn.MaxPool2d, operators: Operators) -> None:
        super().__init__()
        self.sizes = (pool.kernel_size, pool.stride, pool.padding)
        self.operators = operators

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride, padding = self.sizes
        return self.operators.max_pool(x, int(kernel), int(stride), int(padding))


class MeanToFloat(nn.Module):
    """Global average pooling [N, C, H, W] -> [N, C] that leaves in float32, so that no kernel converts the logits."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), dtype=torch.float32)


@dataclass
class Folded:
    """A convolution with its BatchNorm folded in; `consumed` are the nodes that it stands for."""

    x: fx.Node
    weight: Tensor
    bias: Tensor
    geometry: Geometry
    name: str
    consumed: tuple[fx.Node, ...]


def fuse(model: nn.Module, operators: Operators = CUDNN) -> fx.GraphModule:
    """The rewritten model, float32, with its own copies of every weight; `model` itself is left as it is.

    Takes [N, STEM_CHANNELS, H, W], where the channels beyond the picture's must be zero, and returns float32 logits.
    Raises ValueError for a model in training mode and for a pattern that cannot be fused.
    """
    if model.training:
        raise ValueError(f"{type(model).__name__} is in training mode: call eval() before fusing it")
    graph_module = fx.symbolic_trace(model)
    graph_module = fx.GraphModule(_modules(graph_module), graph_module.graph)
    rewrite = _Rewrite(graph_module, operators)
    rewrite.run()
    return graph_module

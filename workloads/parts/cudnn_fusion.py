"""Rewrites an eval ResNet, or what stands on one, so that each convolution is one cuDNN call with all that follows it.

Patterns, matched in the torch.fx graph from each ReLU backwards, where every inner value has no other reader:

    conv (-> bn) -> relu                          conv + bias + ReLU
    conv (-> bn) -> relu -> max pool              a plain convolution, then max pool + bias + ReLU in one kernel
    conv (-> bn) -> add(z) -> relu                conv + bias + add + ReLU, `z` computed elsewhere
    conv (-> bn) -> add(conv (-> bn)) -> relu     the same; `z` is a plain convolution without a bias, which would be
                                                  a kernel of its own: it moves into the bias of the first
    conv (-> bn) -> the model's output            a plain convolution, then its bias
    dropout                                       nothing

The operators are a parameter, so that the rewrite can be proved on a CPU: cuDNN's exist on CUDA only.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

# Given 3 channels, cuDNN pads them to 4 in a kernel of its own before its kernel for first layers, which is three
# times as fast as the general one that 8 channels get. It takes no bias and no ReLU: they go into the pooling after it.
STEM_CHANNELS = 4
ADDITIONS = (operator.add, operator.iadd, torch.add)
RELUS = (F.relu, torch.relu)
Extent = int | tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """The geometry of a convolution, in pixels."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


@dataclass(frozen=True)
class Operators:
    """The operators of the rewritten model, with x and z [N, C, H, W], weight [out, in / groups, h, w] and bias [out].

    `conv(x, weight, geometry)`; `conv_relu(x, weight, bias, geometry)`; `conv_add_relu(x, weight, z, bias, geometry)`
    is relu(conv(x) + z + bias); `max_pool(x, kernel, stride, padding)`; `pool_relu(x, bias, kernel, stride, padding)`
    is relu(max_pool(x) + bias), which equals max_pool(relu(x + bias)) since both only grow with x.
    """

    conv: Callable[[Tensor, Tensor, Geometry], Tensor]
    conv_relu: Callable[[Tensor, Tensor, Tensor, Geometry], Tensor]
    conv_add_relu: Callable[[Tensor, Tensor, Tensor, Tensor, Geometry], Tensor]
    max_pool: Callable[[Tensor, Extent, Extent, Extent], Tensor]
    pool_relu: Callable[[Tensor, Tensor, Extent, Extent, Extent], Tensor]


def plain_conv(x: Tensor, weight: Tensor, how: Geometry) -> Tensor:
    return F.conv2d(x, weight, None, how.stride, how.padding, how.dilation, how.groups)


def cudnn_conv_relu(x: Tensor, weight: Tensor, bias: Tensor, how: Geometry) -> Tensor:
    return torch.cudnn_convolution_relu(x, weight, bias, how.stride, how.padding, how.dilation, how.groups)


def cudnn_conv_add_relu(x: Tensor, weight: Tensor, z: Tensor, bias: Tensor, how: Geometry) -> Tensor:
    walk = (how.stride, how.padding, how.dilation, how.groups)
    return torch.cudnn_convolution_add_relu(x, weight, z, 1.0, bias, *walk)


def max_pool(x: Tensor, kernel: Extent, stride: Extent, padding: Extent) -> Tensor:
    return F.max_pool2d(x, kernel, stride, padding)


def pool_relu(x: Tensor, bias: Tensor, kernel: Extent, stride: Extent, padding: Extent) -> Tensor:
    return F.relu(F.max_pool2d(x, kernel, stride, padding) + bias.view(1, -1, 1, 1))


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One Triton kernel near memory bandwidth; PyTorch's own pooling of channels_last FP16 takes six times as long.

    All sides share what is compiled here, since a step of several networks calls it; `compile_anew` is for one side.
    """
    return torch.compile(function, dynamic=False, fullgraph=True)


def inductor_max_pool(x: Tensor, kernel: Extent, stride: Extent, padding: Extent) -> Tensor:
    return _compiled(max_pool)(x, kernel, stride, padding)


def inductor_pool_relu(x: Tensor, bias: Tensor, kernel: Extent, stride: Extent, padding: Extent) -> Tensor:
    return _compiled(pool_relu)(x, bias, kernel, stride, padding)


CUDNN = Operators(plain_conv, cudnn_conv_relu, cudnn_conv_add_relu, inductor_max_pool, inductor_pool_relu)


@dataclass
class Folded:
    """A convolution with its BatchNorm folded in, taken from the graph: its place, its input and its operation."""

    name: str
    x: fx.Node
    weight: Tensor
    bias: Tensor
    geometry: Geometry


class FusedConv(nn.Module):
    """One convolution with nothing fused into it, with bias + ReLU, or with bias + addition + ReLU."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, folded: Folded, operators: Operators, relu: bool) -> None:
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


class LastConv(nn.Module):
    """The convolution that ends a model: no ReLU follows it, so its bias is a kernel of its own."""

    weight: Tensor
    bias: Tensor

    def __init__(self, folded: Folded, operators: Operators) -> None:
        super().__init__()
        self.register_buffer("weight", folded.weight)
        self.register_buffer("bias", folded.bias)
        self.geometry = folded.geometry
        self.operators = operators

    def forward(self, x: Tensor) -> Tensor:
        return self.operators.conv(x, self.weight, self.geometry) + self.bias.view(1, -1, 1, 1)


class FusedMaxPool(nn.Module):
    """A max pool, alone or with the bias and the ReLU of the convolution before it."""

    bias: Tensor | None

    def __init__(self, pool: nn.MaxPool2d, operators: Operators, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("bias", bias)
        self.walk = (pool.kernel_size, pool.stride, pool.padding)
        self.operators = operators

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return self.operators.max_pool(x, *self.walk)
        return self.operators.pool_relu(x, self.bias, *self.walk)


class MeanInFloat(nn.Module):
    """Mean over pixels, [N, C, H, W] -> float32 [N, C]: the logits then need no kernel that converts them."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), dtype=torch.float32)


def fuse(model: nn.Module, operators: Operators = CUDNN) -> fx.GraphModule:
    """The rewritten model with its own copy of every weight, in the precision of `model`, which stays as it is.

    Takes [N, STEM_CHANNELS, H, W] with zeros in the channels that the picture does not have, and returns float32
    logits, or what its last convolution gives, in that one's precision. Raises ValueError for a model in training mode
    and for a pattern that cannot be fused.
    """
    if model.training:
        raise ValueError(f"{type(model).__name__} is in training mode: call eval() before fusing it")
    traced = fx.symbolic_trace(copy.deepcopy(model))
    _remove_dropout(traced)
    for node in list(traced.graph.nodes):
        if _is_relu(traced, node):
            _fuse_into_relu(traced, node, operators)
        elif node.op == "output":
            _end_with_conv(traced, node, operators)
        elif node.op == "call_module":
            _replace_pool(traced, node, operators)
    traced.graph.eliminate_dead_code()
    traced.delete_all_unused_submodules()
    _refuse_leftovers(traced)
    _widen_stem(traced)
    traced.recompile()
    return traced


def to_channels_last_half(fused: fx.GraphModule) -> fx.GraphModule:
    """Converts the convolutions in place; what follows the mean over pixels stays float32."""
    for module in fused.modules():
        if isinstance(module, (FusedConv, FusedMaxPool, LastConv)):
            module.to(dtype=torch.float16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return fused


def _remove_dropout(traced: fx.GraphModule) -> None:
    """Removes dropout, which is the identity in eval mode; it would otherwise end the patterns before it."""
    for node in list(traced.graph.nodes):
        if isinstance(_module(traced, node), nn.Dropout):
            node.replace_all_uses_with(node.all_input_nodes[0])
            traced.graph.erase_node(node)


def _fuse_into_relu(traced: fx.GraphModule, relu: fx.Node, operators: Operators) -> None:
    source = relu.all_input_nodes[0]
    folded = _fold(traced, source)
    if folded is not None:
        pool = _only_pool_after(traced, relu)
        if pool is not None:
            traced.add_submodule(str(pool.target), FusedMaxPool(_module(traced, pool), operators, folded.bias))
        _replace(traced, relu, FusedConv(folded, operators, relu=pool is None), folded, ())
        return
    folded, z = _fold_addition(traced, source)
    branch = _fold(traced, z)
    if branch is not None:
        folded.bias = folded.bias + branch.bias
        z = _replace(traced, z, FusedConv(branch, operators, relu=False), branch, ())
    _replace(traced, relu, FusedConv(folded, operators, relu=True), folded, (z,))


def _end_with_conv(traced: fx.GraphModule, output: fx.Node, operators: Operators) -> None:
    """Folds the BatchNorm into a convolution that gives the model's output; leaves any other end as it is."""
    for end in output.all_input_nodes:
        folded = _fold(traced, end)
        if folded is not None:
            _replace(traced, end, LastConv(folded, operators), folded, ())


def _only_pool_after(traced: fx.GraphModule, relu: fx.Node) -> fx.Node | None:
    """The max pool that alone reads `relu`, or None."""
    reader = next(iter(relu.users))
    return reader if len(relu.users) == 1 and _fusible_pool(_module(traced, reader)) else None


def _fusible_pool(module: Any) -> bool:
    return (
        isinstance(module, nn.MaxPool2d)
        and module.dilation in (1, (1, 1))
        and not (module.ceil_mode or module.return_indices)
    )


def _fold_addition(traced: fx.GraphModule, addition: fx.Node) -> tuple[Folded, fx.Node]:
    """The convolution on one side of `addition` and the node on the other; raises ValueError where there is none."""
    inputs = addition.all_input_nodes
    if addition.target in ADDITIONS and len(inputs) == 2 and len(addition.users) == 1 and not addition.kwargs:
        for mine, other in (inputs, inputs[::-1]):
            folded = _fold(traced, mine)
            if folded is not None:
                return folded, other
    raise ValueError(f"the ReLU after {addition.name!r} cannot be fused: it must follow a convolution or one plus z")


def _fold(traced: fx.GraphModule, node: fx.Node) -> Folded | None:
    """The convolution that `node` ends, or None when it ends none or when another node reads an inner value."""
    norm = _module(traced, node)
    end = node.all_input_nodes[0] if isinstance(norm, nn.BatchNorm2d) else node
    conv = _module(traced, end)
    if not isinstance(conv, nn.Conv2d) or len(node.users) != 1 or len(end.users) != 1:
        return None
    if sum(call.target == end.target for call in traced.graph.nodes) > 1:
        raise ValueError(f"{end.target!r} is called more than once: what is fused into it must be the same every time")
    if isinstance(conv.padding, str) or conv.padding_mode != "zeros":
        raise ValueError(f"{end.target!r} pads with {conv.padding!r} ({conv.padding_mode}): only zeros can be fused")
    weight, bias = _fold_weights(conv, norm if isinstance(norm, nn.BatchNorm2d) else None)
    geometry = Geometry(conv.stride, conv.padding, conv.dilation, conv.groups)
    return Folded(str(end.target), end.all_input_nodes[0], weight, bias, geometry)


def _fold_weights(conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> tuple[Tensor, Tensor]:
    if norm is None:
        bias = torch.zeros_like(conv.weight[:, 0, 0, 0]) if conv.bias is None else conv.bias
        return conv.weight.detach(), bias.detach()
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError("a BatchNorm without running statistics cannot be folded: set track_running_stats=True")
    statistics = (norm.running_mean, norm.running_var, norm.eps)
    weight, bias = fuse_conv_bn_weights(conv.weight, conv.bias, *statistics, norm.weight, norm.bias)
    return weight.detach(), bias.detach()


def _replace(
    traced: fx.GraphModule, node: fx.Node, module: nn.Module, folded: Folded, further_inputs: tuple[fx.Node, ...]
) -> fx.Node:
    """Puts `module` under the convolution's name and its call in the place of `node`; returns the call."""
    traced.add_submodule(folded.name, module)
    with traced.graph.inserting_before(node):
        call = traced.graph.call_module(folded.name, (folded.x, *further_inputs))
    node.replace_all_uses_with(call)
    traced.graph.erase_node(node)
    return call


def _replace_pool(traced: fx.GraphModule, node: fx.Node, operators: Operators) -> None:
    pool = _module(traced, node)
    if _fusible_pool(pool):
        traced.add_submodule(str(node.target), FusedMaxPool(pool, operators))
    if isinstance(pool, nn.AdaptiveAvgPool2d) and pool.output_size in (1, (1, 1)):
        traced.add_submodule(str(node.target), MeanInFloat())


def _refuse_leftovers(traced: fx.GraphModule) -> None:
    """Raises ValueError for anything but fused convolutions, the two pools and an end: a convolution or a Linear."""
    known = (FusedConv, FusedMaxPool, LastConv, MeanInFloat, nn.Flatten, nn.Linear)
    for node in traced.graph.nodes:
        fine = node.op in ("placeholder", "output") or node.target is torch.flatten
        if not fine and not isinstance(_module(traced, node), known):
            what = type(_module(traced, node)).__name__ if node.op == "call_module" else node.op
            raise ValueError(
                f"{node.name!r} ({what}) fits no pattern that can be fused: see workloads/parts/cudnn_fusion.py"
            )


def _widen_stem(traced: fx.GraphModule) -> None:
    """Zero weights for the channels that pad the input; raises ValueError when the input is not one convolution's."""
    image = next(node for node in traced.graph.nodes if node.op == "placeholder")
    stem = _module(traced, next(iter(image.users)))
    if len(image.users) != 1 or not isinstance(stem, FusedConv) or stem.weight.shape[1] > STEM_CHANNELS:
        raise ValueError(f"the input {image.name!r} must go to one convolution of at most {STEM_CHANNELS} channels")
    stem.weight = F.pad(stem.weight, (0, 0, 0, 0, 0, STEM_CHANNELS - stem.weight.shape[1]))


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    return isinstance(_module(traced, node), nn.ReLU) or (node.op == "call_function" and node.target in RELUS)


def _module(traced: fx.GraphModule, node: fx.Node) -> Any:
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None

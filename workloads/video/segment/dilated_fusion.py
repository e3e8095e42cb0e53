"""cuDNN's fused convolutions for the video's segmenter, without any compilation.

cuDNN may have no engine for dilated convolutions, as FCN's are: separate operators replace these. Pooling is PyTorch's:
Inductor's kernel saves 0.1 ms a batch, which the second of its first import outweighs in a clip of 600 frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.parts.cudnn_fusion import CUDNN, Extent, Geometry, Operators, max_pool


class FusedOrApart:
    """`fused`, or `apart` for dilated geometries for which `fused` raised RuntimeError; `refused` has these.

    The first call must not be part of a graph that is being captured.
    """

    def __init__(self, fused: Callable[..., Tensor], apart: Callable[..., Tensor]) -> None:
        self._fused, self._apart = fused, apart
        self.refused: set[Any] = set()

    def __call__(self, x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        how: Geometry = rest[-1]
        convolution = how, x.shape, weight.shape
        if convolution not in self.refused:
            try:
                return self._fused(x, weight, *rest)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:
                if max(how.dilation) == 1:
                    raise
                self.refused.add(convolution)
        return self._apart(x, weight, *rest)


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, how: Geometry) -> Tensor:
    return F.conv2d(x, weight, bias, how.stride, how.padding, how.dilation, how.groups).relu_()


def conv_add_relu(x: Tensor, weight: Tensor, z: Tensor, bias: Tensor, how: Geometry) -> Tensor:
    return F.conv2d(x, weight, bias, how.stride, how.padding, how.dilation, how.groups).add_(z).relu_()


def pool_relu(x: Tensor, bias: Tensor, kernel: Extent, stride: Extent, padding: Extent) -> Tensor:
    return F.max_pool2d(x, kernel, stride, padding).add_(bias.view(1, -1, 1, 1)).relu_()


def operators(cudnn: Operators = CUDNN) -> tuple[Operators, Callable[[], str | None]]:
    """cuDNN's operators, PyTorch's pooling, and a function that names the refused convolutions, or returns None."""
    fused = FusedOrApart(cudnn.conv_relu, conv_relu), FusedOrApart(cudnn.conv_add_relu, conv_add_relu)

    def told() -> str | None:
        shapes = sorted(str(list(weight)) for each in fused for *_, weight in each.refused)
        return f"cuDNN fuses nothing into dilated convolutions with weights {', '.join(shapes)}" if shapes else None

    ours = replace(cudnn, conv_relu=fused[0], conv_add_relu=fused[1], max_pool=max_pool, pool_relu=pool_relu)
    return ours, told

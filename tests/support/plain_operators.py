"""The operators of a fused network by PyTorch, one after the other."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from workloads.parts.cudnn_fusion import Geometry, Operators, max_pool, plain_conv, pool_relu


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, how: Geometry) -> Tensor:
    return F.conv2d(x, weight, bias, how.stride, how.padding, how.dilation, how.groups).relu()


def conv_add_relu(x: Tensor, weight: Tensor, z: Tensor, bias: Tensor, how: Geometry) -> Tensor:
    return (F.conv2d(x, weight, bias, how.stride, how.padding, how.dilation, how.groups) + z).relu()


PLAIN = Operators(plain_conv, conv_relu, conv_add_relu, max_pool, pool_relu)

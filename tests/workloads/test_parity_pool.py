"""Pooling by parity against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.parts.resnet_layers import ParityPool


def images(dtype: torch.dtype) -> Tensor:
    """[2, 3, 6, 8]: behind ResNet's first ReLU half of the pixels are the same zero."""
    torch.manual_seed(0)
    return torch.randn(2, 3, 6, 8).relu().to(dtype)


def pooled(pixels: Tensor) -> Tensor:
    return F.max_pool2d(pixels, 3, stride=2, padding=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_pools_and_gives_gradients_as_pytorch_does(dtype: torch.dtype, layout: torch.memory_format) -> None:
    ours, theirs = (images(dtype).contiguous(memory_format=layout).requires_grad_() for _ in range(2))
    found, expected = ParityPool()(ours), pooled(theirs)
    gradient = torch.randn_like(expected)
    found.backward(gradient)
    expected.backward(gradient)
    assert torch.equal(found, expected)
    assert ours.grad is not None
    assert ours.grad.abs().sum() > 0
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_pixel_that_is_no_number_is_not_lost() -> None:
    pixels = images(torch.float32)
    pixels[1, 2, 3, 4] = torch.nan
    assert torch.equal(ParityPool()(pixels).isnan(), pooled(pixels).isnan())


def test_it_is_one_graph_for_a_compiler_also_under_autocast() -> None:
    ours, theirs = (images(torch.float32).requires_grad_() for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.compile(ParityPool(), backend="aot_eager", fullgraph=True)(ours)
    found.square().sum().backward()
    pooled(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)

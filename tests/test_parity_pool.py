from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from workloads.parity_pool import ParityPool


def images(dtype: torch.dtype) -> torch.Tensor:
    """[2, 3, 6, 8]: of ResNet's first ReLU, half of the pixels are the same zero."""
    torch.manual_seed(0)
    return torch.randn(2, 3, 6, 8).relu().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_pools_and_gives_gradients_bit_for_bit_as_pytorch_does(
    dtype: torch.dtype, layout: torch.memory_format
) -> None:
    ours, theirs = (images(dtype).contiguous(memory_format=layout).requires_grad_() for _ in range(2))
    pooled, expected = ParityPool()(ours), F.max_pool2d(theirs, 3, stride=2, padding=1)
    gradient = torch.randn_like(expected)
    pooled.backward(gradient)
    expected.backward(gradient)
    assert torch.equal(pooled, expected)
    assert ours.grad is not None
    assert ours.grad.abs().sum() > 0
    assert torch.equal(ours.grad, theirs.grad)


def test_a_pixel_that_is_no_number_is_not_lost() -> None:
    pixels = images(torch.float32)
    pixels[1, 2, 3, 4] = torch.nan
    assert torch.equal(ParityPool()(pixels).isnan(), F.max_pool2d(pixels, 3, stride=2, padding=1).isnan())


def test_what_comes_out_lies_in_channels_last() -> None:
    assert ParityPool()(images(torch.float32)).is_contiguous(memory_format=torch.channels_last)

"""Convolutions of one picture compute what cuDNN computes, with equal bits each time."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from workloads.parts.cudnn_fusion import CUDNN, Geometry
from workloads.parts.split_convolution import TILES, Layer, SplitConvolutions

REPEATS = 50


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layer", sorted(TILES), ids=str)
def test_a_convolution_is_cudnns(layer: Layer, stride: int) -> None:
    device, side = torch.device("cuda", 0), round(layer.pixels**0.5) * stride
    random = torch.Generator(device).manual_seed(0)
    padding = layer.filter_side // 2
    how = Geometry((stride, stride), (padding, padding), (1, 1), 1)

    def draw(*shape: int) -> torch.Tensor:
        drawn = torch.randn(*shape, device=device, generator=random).half()
        return drawn.to(memory_format=torch.channels_last) if len(shape) == 4 else drawn

    x = draw(1, layer.inputs, side, side)
    weight = draw(layer.outputs, layer.inputs, layer.filter_side, layer.filter_side) / layer.inputs**0.5
    bias, ours = draw(layer.outputs), SplitConvolutions(device).operators()
    z = draw(*CUDNN.conv(x, weight, how).shape)
    for name, arguments in (("conv", ()), ("conv_relu", (bias,)), ("conv_add_relu", (z, bias))):
        expected = getattr(CUDNN, name)(x, weight, *arguments, how)
        found = [getattr(ours, name)(x, weight, *arguments, how) for _ in range(REPEATS)]
        torch.testing.assert_close(found[0], expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))
        assert all(one.equal(found[0]) for one in found)

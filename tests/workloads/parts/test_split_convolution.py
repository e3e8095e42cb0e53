"""The tiles of one picture's convolutions; what the kernel computes is checked on a GPU (`tests/gpu`)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")
from torchvision.models import resnet50 as architecture

from workloads.parts.cudnn_fusion import Geometry
from workloads.parts.split_convolution import (
    ANY_LAYER,
    SHARES,
    TILES,
    TILES_AT_ONCE,
    Layer,
    SplitConvolutions,
    tile_of,
)

CPU = torch.device("cpu")
PLAIN = Geometry((1, 1), (0, 0), (1, 1), 1)


def layers_of_resnet50() -> set[Layer]:
    """The layers with enough inputs: all but the first."""
    found = set()

    def note(layer: nn.Conv2d, inputs: tuple[Tensor], output: Tensor) -> None:
        found.add(Layer(output.shape[2] * output.shape[3], layer.in_channels, layer.out_channels, layer.kernel_size[0]))

    with torch.device("meta"), torch.no_grad():
        model = architecture().eval()
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d) and layer.in_channels >= ANY_LAYER.depth:
                layer.register_forward_hook(note)  # type: ignore[arg-type]
        model(torch.empty(1, 3, 224, 224))
    return found


def test_every_layer_of_resnet50_has_a_tile_and_no_other_layer_has_one() -> None:
    assert layers_of_resnet50() == set(TILES)


@pytest.mark.parametrize("layer", sorted(TILES), ids=str)
def test_a_tile_divides_its_layer_and_fits_the_scratch_memory(layer: Layer) -> None:
    tile = tile_of(layer)
    tiles = -(-layer.pixels // tile.pixels) * (layer.outputs // tile.channels)
    assert tiles <= TILES_AT_ONCE
    assert tile.splits == 1 or tile.splits * layer.pixels * layer.outputs <= SHARES
    assert tile.splits * tile.depth <= layer.inputs * layer.filter_side**2


@pytest.mark.parametrize(
    ("pictures", "how"),
    [(2, PLAIN), (1, Geometry((1, 1), (2, 2), (2, 2), 1)), (1, Geometry((1, 1), (0, 0), (1, 1), 2))],
)
def test_what_the_kernel_does_not_compute_is_refused(pictures: int, how: Geometry) -> None:
    with pytest.raises(ValueError, match=f"on {pictures} pictures: use cuDNN for more than one picture"):
        SplitConvolutions(CPU).conv(torch.rand(pictures, 64, 8, 8), torch.rand(64, 64, 1, 1), how)

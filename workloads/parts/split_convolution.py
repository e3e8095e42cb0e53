"""Convolutions of one picture in FP16, each one Triton kernel with all that follows it.

One picture gives a layer few tiles of output: 14x14 pixels of 256 channels are 32 tiles of 64x32 for 132
multiprocessors. So each layer has a tile size of its own. Four of the 19 kinds of layers also divide the sum over a
filter's inputs (split-K): each program adds up its share of a tile, and the last one that arrives adds the shares, in a
fixed order, so that equal inputs give equal bits. A kernel releases the next one when its sums are done, so that the
launch and the first instructions of the next one overlap its end (programmatic dependent launch, compute capability
9.0). On an older GPU a kernel starts after the one before it has ended. The tiles are those of an H100 on every GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workloads.parts.cudnn_fusion import CUDNN, Geometry, Operators, plain_conv

SHARES, TILES_AT_ONCE = 2**22, 2**12  # of the scratch memory: float32 values, and tiles with a counter each
OVERLAPS_LAUNCHES = (9, 0)  # the least compute capability


class Tile(NamedTuple):
    """The division of a convolution among programs: a tile has `pixels` x `channels` outputs, and `splits` programs."""

    pixels: int
    channels: int
    depth: int  # inputs of a filter that are multiplied at once
    splits: int
    stages: int  # loads in flight


class Layer(NamedTuple):
    """The properties of a convolution that decide its best tile: output pixels, channels and filter."""

    pixels: int
    inputs: int
    outputs: int
    filter_side: int


# The fastest tiles of one process of an H100. At stride 1, `python -m tools.convolution_tiles` tries further ones.
TILES = {
    Layer(3136, 64, 64, 1): Tile(64, 32, 64, 1, 3),
    Layer(3136, 64, 64, 3): Tile(64, 32, 64, 1, 3),
    Layer(3136, 64, 256, 1): Tile(64, 64, 64, 1, 3),
    Layer(3136, 256, 64, 1): Tile(64, 32, 64, 1, 3),
    Layer(3136, 256, 128, 1): Tile(64, 64, 64, 1, 3),
    Layer(784, 128, 128, 3): Tile(16, 32, 128, 1, 3),
    Layer(784, 256, 512, 1): Tile(64, 64, 64, 1, 3),
    Layer(784, 128, 512, 1): Tile(64, 64, 64, 1, 3),
    Layer(784, 512, 128, 1): Tile(32, 32, 128, 1, 3),
    Layer(784, 512, 256, 1): Tile(64, 32, 128, 1, 3),
    Layer(196, 256, 256, 3): Tile(16, 64, 64, 4, 3),
    Layer(196, 512, 1024, 1): Tile(64, 32, 64, 1, 5),
    Layer(196, 256, 1024, 1): Tile(64, 32, 64, 1, 3),
    Layer(196, 1024, 256, 1): Tile(16, 32, 128, 1, 3),
    Layer(196, 1024, 512, 1): Tile(64, 32, 128, 2, 3),
    Layer(49, 512, 512, 3): Tile(16, 64, 64, 8, 3),
    Layer(49, 1024, 2048, 1): Tile(16, 64, 64, 1, 5),
    Layer(49, 512, 2048, 1): Tile(32, 32, 64, 1, 5),
    Layer(49, 2048, 512, 1): Tile(32, 32, 64, 4, 3),
}
ANY_LAYER = Tile(32, 32, 64, 1, 3)


def tile_of(layer: Layer) -> Tile:
    """The tile of a layer of ResNet-50 at 224x224, and ANY_LAYER of another one.

    Raises ValueError where the tile does not divide the channels.
    """
    tile = TILES.get(layer, ANY_LAYER)
    if layer.inputs % tile.depth or layer.outputs % tile.channels:
        raise ValueError(f"{layer} has no whole number of tiles {tile}: give channels that are multiples of 64")
    return tile


@triton.jit  # type: ignore[untyped-decorator]
def _convolve(  # type: ignore[no-untyped-def]  # Triton compiles it
    x, weight, bias, z, out, shares, arrived, height, width, out_width, pixels, inputs, outputs, summed, stride,
    padding, has_bias, has_z, filter_side: tl.constexpr, splits: tl.constexpr, tile_pixels: tl.constexpr,
    tile_channels: tl.constexpr, depth: tl.constexpr, overlaps: tl.constexpr,
):  # fmt: skip
    """One program's share of one tile. Pixels are rows and channels are columns, all channels-last:

    x [height * width, inputs], weight [outputs, summed], z and out [pixels, outputs], shares [splits, pixels, outputs].
    """
    channel_tile, pixel_tile, share = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = pixel_tile * tile_pixels + tl.arange(0, tile_pixels)
    channel = channel_tile * tile_channels + tl.arange(0, tile_channels)
    step = tl.arange(0, depth)
    top, left = (row // out_width) * stride - padding, (row % out_width) * stride - padding
    steps = summed // depth
    steps_each = (steps + splits - 1) // splits
    total = tl.zeros((tile_pixels, tile_channels), dtype=tl.float32)
    if overlaps:
        gdc_wait()  # nothing before this line may read or write memory that another kernel uses
    for number in range(share * steps_each, min((share + 1) * steps_each, steps)):
        start = number * depth
        place = start // inputs  # in the filter
        y, x_at = top + place // filter_side, left + place % filter_side
        inside = (row < pixels) & (y >= 0) & (y < height) & (x_at >= 0) & (x_at < width)
        pixel = x + (y * width + x_at)[:, None] * inputs + (start - place * inputs + step)[None, :]
        seen = tl.load(pixel, mask=inside[:, None], other=0.0)
        total = tl.dot(seen, tl.load(weight + channel[None, :] * summed + (start + step)[:, None]), total)
    if overlaps:
        gdc_launch_dependents()
    at = row[:, None] * outputs + channel[None, :]
    exists = (row < pixels)[:, None] & (channel < outputs)[None, :]
    last = True
    if splits > 1:
        tile = pixel_tile * tl.num_programs(0) + channel_tile
        tl.store(shares + share * pixels * outputs + at, total, mask=exists)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == splits - 1
        if last:
            total = tl.zeros((tile_pixels, tile_channels), dtype=tl.float32)
            for other in range(splits):
                one = shares + other * pixels * outputs + at
                total += tl.load(one, mask=exists, other=0.0, cache_modifier=".cg")
            tl.store(arrived + tile, 0)
    if last:
        if has_bias:
            total += tl.load(bias + channel)[None, :].to(tl.float32)
            if has_z:
                total += tl.load(z + at, mask=exists, other=0.0).to(tl.float32)
            total = tl.maximum(total, 0.0)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=exists)


class SplitConvolutions:
    """The three convolutions of `Operators` for one picture in channels-last FP16; their sums are FP32.

    The convolutions share their scratch memory. On two streams at once, programs would count and overwrite each other's
    shares: the results would be wrong without an error.
    """

    def __init__(self, device: torch.device) -> None:
        self._shares = torch.empty(SHARES, dtype=torch.float32, device=device)
        self._arrived = torch.zeros(TILES_AT_ONCE, dtype=torch.int32, device=device)
        cuda = device.type == "cuda"
        self._overlaps = cuda and torch.cuda.get_device_capability(device) >= OVERLAPS_LAUNCHES

    def operators(self) -> Operators:
        """`CUDNN` with these convolutions; the first layer, whose filter has few inputs, stays cuDNN's."""
        return replace(CUDNN, conv=self.conv, conv_relu=self.conv_relu, conv_add_relu=self.conv_add_relu)

    def conv(self, x: Tensor, weight: Tensor, how: Geometry) -> Tensor:
        if x.shape[1] < ANY_LAYER.depth:
            return plain_conv(x, weight, how)
        return self.convolve(x, weight, None, None, how)

    def conv_relu(self, x: Tensor, weight: Tensor, bias: Tensor, how: Geometry) -> Tensor:
        return self.convolve(x, weight, bias, None, how)

    def conv_add_relu(self, x: Tensor, weight: Tensor, z: Tensor, bias: Tensor, how: Geometry) -> Tensor:
        return self.convolve(x, weight, bias, z, how)

    def convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None, how: Geometry, tile: Tile | None = None
    ) -> Tensor:
        """Convolves x [1, inputs, h, w], then adds `bias` and `z` and applies ReLU, where there is a bias.

        The filter is square; x, weight and z are FP16 and channels-last, which is not checked. Raises ValueError for
        several pictures, groups, dilation, a stride or padding that differs between rows and columns, and for more
        scratch memory than there is.
        """
        (pictures, inputs, height, width), (outputs, _, side, _) = x.shape, weight.shape
        (stride, padding), one = (how.stride[0], how.padding[0]), (1, 1)
        if (
            pictures != 1
            or how.groups != 1
            or (how.dilation, how.stride, how.padding) != (one, (stride,) * 2, (padding,) * 2)
        ):
            raise ValueError(f"{how} on {pictures} pictures: use cuDNN for more than one picture, groups and dilation")
        rows, columns = ((extent + 2 * padding - side) // stride + 1 for extent in (height, width))
        pixels = rows * columns
        tile = tile or tile_of(Layer(pixels, inputs, outputs, side))
        grid = (outputs // tile.channels, triton.cdiv(pixels, tile.pixels), tile.splits)
        if grid[0] * grid[1] > TILES_AT_ONCE or (tile.splits > 1 and tile.splits * pixels * outputs > SHARES):
            raise ValueError(f"{outputs} channels of {pixels} pixels need more scratch memory: use cuDNN for them")
        out = torch.empty(
            (1, outputs, rows, columns), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
        )
        launch: dict[str, Any] = {"num_warps": 4, "num_stages": tile.stages, "launch_pdl": self._overlaps}
        _convolve[grid](
            x, weight, x if bias is None else bias, x if z is None else z, out, self._shares, self._arrived,
            height, width, columns, pixels, inputs, outputs, side * side * inputs, stride, padding,
            int(bias is not None), int(z is not None), filter_side=side, splits=tile.splits, tile_pixels=tile.pixels,
            tile_channels=tile.channels, depth=tile.depth, overlaps=self._overlaps, **launch,
        )  # fmt: skip
        return out

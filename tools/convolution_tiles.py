"""The fastest tile of each layer of ResNet-50 for one picture, as the lines of `TILES` (needs a GPU).

`python -m tools.convolution_tiles` times tiles that give a GPU 50 to 700 programs, each in a CUDA graph of 20
convolutions in a row, and prints the fastest tile of each layer, with its time and cuDNN's.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from workloads.parts.cudnn_fusion import Geometry, cudnn_conv_relu
from workloads.parts.graph_capture import recorded
from workloads.parts.split_convolution import TILES, Layer, SplitConvolutions, Tile

IN_A_ROW, REPLAYS, BLOCKS, MOST_TILES, COMPILERS = 20, 10, 5, 60, 12
FEWEST_PROGRAMS, WANTED_PROGRAMS, MOST_PROGRAMS = 50, 200, 700
MOST_STEPS = 20  # of a program
SHARED_BYTES = 232_448  # of a program at compute capability 9.0; its loads in flight must fit


def list_tiles(layer: Layer) -> list[Tile]:
    """The tile of TILES, and those whose number of programs is nearest to WANTED_PROGRAMS."""
    tiles = sorted(_possible(layer), key=lambda tile: abs(count_programs(layer, tile) - WANTED_PROGRAMS))
    return list(dict.fromkeys([TILES[layer], *tiles[:MOST_TILES]]))


def count_programs(layer: Layer, tile: Tile) -> int:
    return -(-layer.pixels // tile.pixels) * (layer.outputs // tile.channels) * tile.splits


def _possible(layer: Layer) -> Iterator[Tile]:
    summed = layer.inputs * layer.filter_side**2
    shapes = itertools.product((16, 32, 64), (32, 64, 128), (64, 128), (1, 2, 3, 4, 6, 8, 9, 12, 16), (2, 3, 5))
    for tile in itertools.starmap(Tile, shapes):
        steps = summed / tile.depth / tile.splits
        loaded_bytes = 2 * tile.stages * (tile.pixels + tile.channels) * tile.depth
        if layer.inputs % tile.depth or layer.outputs % tile.channels or loaded_bytes > SHARED_BYTES:
            continue
        if FEWEST_PROGRAMS <= count_programs(layer, tile) <= MOST_PROGRAMS and 1 <= steps <= MOST_STEPS:
            yield tile


def time_us(convolve: Callable[[], Tensor], device: torch.device) -> float:  # cuda only
    """The median time of one of IN_A_ROW convolutions, in microseconds."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    graph, _ = recorded(lambda: [convolve() for _ in range(IN_A_ROW)], stream)
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    taken: list[float] = []
    for _ in range(BLOCKS):
        began.record()
        for _ in range(REPLAYS):
            graph.replay()
        ended.record()
        ended.synchronize()
        taken.append(1e3 * began.elapsed_time(ended) / REPLAYS / IN_A_ROW)
    return statistics.median(taken)


@torch.inference_mode()
def describe_layer(layer: Layer, device: torch.device) -> str:  # cuda only
    """The line of a layer in TILES, at a stride of 1."""
    side, padding = round(layer.pixels**0.5), layer.filter_side // 2
    how = Geometry((1, 1), (padding, padding), (1, 1), 1)
    shapes = (1, layer.inputs, side, side), (layer.outputs, layer.inputs, layer.filter_side, layer.filter_side)
    x, weight = (torch.randn(shape, device=device).half().to(memory_format=torch.channels_last) for shape in shapes)
    bias = torch.zeros(layer.outputs, device=device).half()
    convolutions, tiles = SplitConvolutions(device), list_tiles(layer)

    def convolve(tile: Tile) -> Tensor:
        with torch.inference_mode():  # which each thread sets for itself
            return convolutions.convolve(x, weight, bias, None, how, tile)

    with ThreadPoolExecutor(COMPILERS) as pool:
        list(pool.map(convolve, tiles))
    torch.cuda.synchronize(device)
    best = min((time_us(lambda tile=tile: convolve(tile), device), tile) for tile in tiles)  # type: ignore[misc]
    cudnn = time_us(lambda: cudnn_conv_relu(x, weight, bias, how), device)
    return f"    {layer!r}: {best[1]!r},  # {best[0]:.2f} us, cuDNN {cudnn:.2f} us"


def main() -> None:  # cuda only
    torch.backends.cudnn.benchmark = True
    for layer in TILES:
        print(describe_layer(layer, torch.device("cuda", 0)), flush=True)


if __name__ == "__main__":
    main()

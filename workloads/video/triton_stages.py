"""Kernels in Triton that preprocess and composite NV12: one for all channels, and one for each plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256  # pixels of a program that preprocesses
# Of a program that composites: pixels along its side, a multiple of those along one of its products, and warps.
TILE, CHUNK, WARPS = 64, 64, 4


@triton.jit
def tap(sample, samples, pixels):  # type: ignore[no-untyped-def]
    """The pixels of a side that a sample mixes, and the share of the second: as `preprocess.taps` has them."""
    halves = (2 * sample + 1) * pixels + samples  # one pixel further, so that none is below zero
    lower = halves // (2 * samples) - 1
    share = (halves % (2 * samples)).to(tl.float32) / (2 * samples)
    return tl.minimum(tl.maximum(lower, 0), pixels - 1), tl.minimum(lower + 1, pixels - 1), share


@triton.jit
def _levels(nv12, row, column, inside, height, width):  # type: ignore[no-untyped-def]
    """Y, U and V of the pixels, above the levels that stand for none."""
    chroma = nv12 + (height + row // 2) * width + column // 2 * 2
    y = tl.load(nv12 + row * width + column, inside, 16).to(tl.float32) - 16
    return y, tl.load(chroma, inside, 128).to(tl.float32) - 128, tl.load(chroma + 1, inside, 128).to(tl.float32) - 128


@triton.jit
def _colour(y, u, v, table):  # type: ignore[no-untyped-def]
    """A whole level of one colour, by swscale's arithmetic: each product is rounded down by itself."""
    level = tl.floor(y * tl.load(table)) + tl.floor(u * tl.load(table + 1)) + tl.floor(v * tl.load(table + 2))
    return tl.minimum(tl.maximum(level, 0.0), 255.0)


@triton.jit  # type: ignore[untyped-decorator]
def _preprocess(  # type: ignore[no-untyped-def]
    nv12,
    table,
    result,
    height,
    width,
    h,
    w,
    of_frame,
    of_channel,
    of_row,
    of_column,
    exact: tl.constexpr,
    block: tl.constexpr,
):
    frame = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < h * w
    row, column = at // w, at % w
    above, below, down = tap(row, h, height)
    before, after, across = tap(column, w, width)
    nv12 += frame * (height * 3 // 2) * width
    result += frame * of_frame + row * of_row + column * of_column
    y, u, v = _levels(nv12, above, before, inside, height, width)
    if not exact:
        y1, u1, v1 = _levels(nv12, above, after, inside, height, width)
        y2, u2, v2 = _levels(nv12, below, before, inside, height, width)
        y3, u3, v3 = _levels(nv12, below, after, inside, height, width)
    for channel in tl.static_range(3):
        gains = table + 5 * channel
        level = _colour(y, u, v, gains)
        if not exact:
            upper = level + across * (_colour(y1, u1, v1, gains) - level)
            lower = _colour(y2, u2, v2, gains)
            lower += across * (_colour(y3, u3, v3, gains) - lower)
            level = upper + down * (lower - upper)
        tl.store(result + channel * of_channel, level * tl.load(gains + 3) + tl.load(gains + 4), inside)


def preprocess(size: tuple[int, int], input_size: tuple[int, int], table: Tensor) -> Callable[[Tensor], Tensor]:
    """The network's input from NV12, as `preprocess.in_torch` makes it: each program makes a run of pixels.

    Sizes are (height, width), of frames and of the input. `table`, float32 [3, 5] on the device, has for red, green and
    blue the gains of Y, U and V, and the scale and the shift of the input.
    """
    (height, width), (h, w) = size, input_size
    exact = height % (2 * h) == h and width % (2 * w) == w  # an odd multiple: a sample is a pixel's middle

    def sample(nv12: Tensor) -> Tensor:
        result = torch.empty((len(nv12), 3, h, w), device=nv12.device)
        grid, sizes = (triton.cdiv(h * w, BLOCK), len(nv12)), (height, width, h, w, *result.stride())
        _preprocess[grid](nv12, table, result, *sizes, exact=exact, block=BLOCK, num_warps=4)
        return result

    return sample


@triton.jit  # type: ignore[untyped-decorator]
def _composite(  # type: ignore[no-untyped-def]
    nv12,
    alpha,
    out,
    blur_down,
    blur_across,
    enlarge_down,
    enlarge_across,
    rows,
    columns,
    h,
    w,
    of_frame,
    tile: tl.constexpr,
    margin: tl.constexpr,
    chunk: tl.constexpr,
    patch: tl.constexpr,
):
    across, down, frame = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    nv12 += frame * of_frame
    out += frame * of_frame
    top, left = down * tile, across * tile
    window: tl.constexpr = tile + 2 * margin
    in_tile, in_chunk, in_patch = tl.arange(0, tile), tl.arange(0, chunk), tl.arange(0, patch)
    # The blur, of all that lies up to `margin` around the tile, in chunks.
    blur_down += (down * tile + in_tile)[:, None] * window + in_chunk[None, :]
    blur_across += (across * tile + in_tile)[None, :] * window + in_chunk[:, None]
    background = tl.zeros((tile, tile), tl.float32)
    for i in tl.static_range(window // chunk):
        x = left - margin + chunk * i + in_chunk
        half_way = tl.zeros((tile, chunk), tl.float32)
        for j in tl.static_range(window // chunk):
            y = top - margin + chunk * j + in_chunk
            inside = ((y >= 0) & (y < rows))[:, None] & ((x >= 0) & (x < columns))[None, :]
            levels = tl.load(nv12 + y[:, None] * columns + x[None, :], inside, 0).to(tl.float16)
            half_way += tl.dot(tl.load(blur_down + chunk * j), levels)
        background += tl.dot(half_way.to(tl.float16), tl.load(blur_across + chunk * i))
    # The share of the foreground, of the patch of alpha that the tile's pixels lie in.
    y, x = top * h // rows - 1 + in_patch, left * w // columns - 1 + in_patch
    inside = ((y >= 0) & (y < h))[:, None] & ((x >= 0) & (x < w))[None, :]
    shares = tl.load(alpha + frame * h * w + y[:, None] * w + x[None, :], inside, 0.0).to(tl.float16)
    weights = tl.load(enlarge_down + (down * tile + in_tile)[:, None] * patch + in_patch[None, :])
    half_way = tl.dot(weights, shares).to(tl.float16)
    weights = tl.load(enlarge_across + (across * tile + in_tile)[None, :] * patch + in_patch[:, None])
    share = tl.dot(half_way, weights)
    y, x = (top + in_tile)[:, None], (left + in_tile)[None, :]
    inside = (y < rows) & (x < columns)
    blended = background + share * (tl.load(nv12 + y * columns + x, inside, 0).to(tl.float32) - background)
    tl.store(out + y * columns + x, (blended + 0.5).to(tl.uint8), inside)


def composite(rows: slice, matrices: Sequence[Tensor]) -> Callable[[Tensor, Tensor, Tensor], None]:
    """Composites one plane of NV12, its `rows`, by alpha, float32 [n, h, w], into another NV12: one launch.

    `matrices` are those of `composite.make_matrices` for the plane. A blur mixes pixels up to `reach` apart, across
    further than down, so a tile needs a block of each matrix, and no other zeros.
    """
    (tall, h), (wide, w) = matrices[2].shape, matrices[3].shape
    reach = int(matrices[1].nonzero().diff(dim=1).abs().max())
    tops, lefts = range(0, tall, TILE), range(0, wide, TILE)
    margin = triton.cdiv(reach, CHUNK // 2) * (CHUNK // 2)
    patch = triton.next_power_of_2(max(TILE * h // tall, TILE * w // wide, 12) + 4)  # a product has at least 16
    blocks = (
        cut_blocks(matrices[0], [top - margin for top in tops], TILE + 2 * margin),
        cut_blocks(matrices[1], [left - margin for left in lefts], TILE + 2 * margin),
        cut_blocks(matrices[2], [top * h // tall - 1 for top in tops], patch),
        cut_blocks(matrices[3], [left * w // wide - 1 for left in lefts], patch),
    )
    sides = {"tile": TILE, "margin": margin, "chunk": CHUNK, "patch": patch}

    def blend(nv12: Tensor, alpha: Tensor, out: Tensor) -> None:
        grid, sizes = (len(lefts), len(tops), len(nv12)), (tall, wide, h, w, nv12.stride(0))
        _composite[grid](nv12[:, rows], alpha, out[:, rows], *blocks, *sizes, **sides, num_warps=WARPS)

    return blend


def cut_blocks(matrix: Tensor, starts: Sequence[int], columns: int) -> Tensor:
    """float16 [tiles, TILE, columns]: the columns from its start on of each TILE rows, with zeros beyond the matrix."""
    padded = F.pad(matrix.half(), (columns, columns, 0, -len(matrix) % TILE))
    tiles = (padded[TILE * tile : TILE * (tile + 1), columns + start :] for tile, start in enumerate(starts))
    return torch.stack([tile[:, :columns] for tile in tiles])

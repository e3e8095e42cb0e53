"""Preprocessing and compositing of NV12 as one kernel in Triton each: nothing between input and output is in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # pixels of a program that preprocesses
TILE = 64  # of a program that composites


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
    """The network's input from NV12, as `preprocess.OnDevice` makes it: each program makes a run of pixels.

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


@triton.jit
def _mirrored(place, last):  # type: ignore[no-untyped-def]
    """The place within a side that is mirrored about its outermost pixels, as by BORDER_REFLECT_101."""
    return tl.maximum(last - tl.abs(last - tl.abs(place)), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _composite(  # type: ignore[no-untyped-def]
    nv12,
    alpha,
    out,
    down,
    across,
    height,
    width,
    h,
    w,
    luma_tiles,
    luma_reach,
    chroma_reach,
    tile: tl.constexpr,
    window: tl.constexpr,
):
    number, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    chroma = (number >= luma_tiles).to(tl.int32)
    kinds, rows = 1 + chroma, height // (1 + chroma)  # in a row of chroma, U and V alternate
    reach = tl.where(chroma == 1, chroma_reach, luma_reach)
    number -= chroma * luma_tiles
    tiles_across = tl.cdiv(width, tile)
    top, left = number // tiles_across * tile, number % tiles_across * tile
    plane = frame * (height * 3 // 2) * width + chroma * height * width
    # The tile, and what the weights reach around it.
    around_rows = _mirrored(top - reach + tl.arange(0, window), rows - 1)
    around = left + window * kinds - reach * kinds + tl.arange(0, window)  # a window further: none is below zero
    columns = _mirrored(around // kinds - window, width // kinds - 1) * kinds + around % kinds
    levels = tl.load(nv12 + plane + around_rows[:, None] * width + columns[None, :]).to(tl.float16)
    weights = (chroma * tile + tl.arange(0, tile))[:, None] * window + tl.arange(0, window)[None, :]
    half_way = tl.dot(tl.load(down + weights), levels).to(tl.float16)
    blurred = tl.dot(half_way, tl.trans(tl.load(across + weights)))
    # Alpha, between four of the network's pixels.
    row, column = top + tl.arange(0, tile), left + tl.arange(0, tile)
    above, below, lower_share = tap(row, rows, h)
    before, after, later_share = tap(column // kinds, width // kinds, w)
    alpha += frame * h * w
    upper = tl.load(alpha + above[:, None] * w + before[None, :])
    upper += later_share[None, :] * (tl.load(alpha + above[:, None] * w + after[None, :]) - upper)
    lower = tl.load(alpha + below[:, None] * w + before[None, :])
    lower += later_share[None, :] * (tl.load(alpha + below[:, None] * w + after[None, :]) - lower)
    share = upper + lower_share[:, None] * (lower - upper)
    at, inside = plane + row[:, None] * width + column[None, :], (row < rows)[:, None] & (column < width)[None, :]
    blended = blurred + share * (tl.load(nv12 + at, inside, 0).to(tl.float32) - blurred)
    tl.store(out + at, (blended + 0.5).to(tl.uint8), inside)


def composite(
    size: tuple[int, int],
    input_size: tuple[int, int],
    luma: Sequence[float],
    chroma: Sequence[float],
    device: torch.device,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Composites of NV12 by alpha, float32 [n, h, w], as `composite.OnDevice` makes them in half precision: one launch.

    Sizes are (height, width), of frames and of the network's input; `luma` and `chroma` are the weights of their blurs.
    A blur is two products with a band of weights, as there, but of a tile and what the weights reach around it: tensor
    cores multiply few zeros.
    """
    height, width = size
    window = triton.next_power_of_2(TILE + max(len(luma) - 1, 2 * len(chroma) - 2))
    down = torch.stack((_band(luma, window), _band(chroma, window))).half().to(device)
    across = torch.stack((_band(luma, window), _band(chroma, window, step=2))).half().to(device)
    tiles = [triton.cdiv(rows, TILE) * triton.cdiv(width, TILE) for rows in (height, height // 2)]
    sizes = height, width, *input_size, tiles[0], len(luma) // 2, len(chroma) // 2

    def blend(nv12: Tensor, alpha: Tensor) -> Tensor:
        result = torch.empty_like(nv12)
        given = nv12, alpha.contiguous(), result, down, across
        _composite[sum(tiles), len(nv12)](*given, *sizes, tile=TILE, window=window, num_warps=8)
        return result

    return blend


def _band(weights: Sequence[float], window: int, step: int = 1) -> Tensor:
    """float32 [TILE, window]: in each row the weights, `step` columns apart, a column further than in the last."""
    band = torch.zeros(TILE, window)
    for place, weight in enumerate(weights):
        band.diagonal(step * place)[:TILE] = weight
    return band

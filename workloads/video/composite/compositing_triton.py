"""Compositing of NV12 in one kernel in Triton: each program blurs a tile and blends it with the frame.

A blur is two products with a band of weights, as in `separable`, but of a tile and what the weights reach around it:
tensor cores multiply few zeros, and nothing between the frame and the composite is ever in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from workloads.video.clip.colour import FrameSize
from workloads.video.composite.compositing import alpha_of, check_alike
from workloads.video.composite.gaussian import Weights, blur_pixels, gaussian_weights, halved
from workloads.video.preprocess.preprocessing import input_size
from workloads.video.preprocess.preprocessing_triton import tap

TILE = 64


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


class OneKernel:
    """Composites of NV12, as `compositing.OnDevice` makes them in half precision, by one launch after alpha's."""

    def __init__(self, height: int, width: int, device: torch.device) -> None:
        self._size, self._sides, self._alpha_size = FrameSize(height, width), (height, width), input_size(height, width)
        luma = gaussian_weights(blur_pixels(height))
        chroma = halved(luma)
        self._reach = len(luma) // 2, len(chroma) // 2
        self._window = triton.next_power_of_2(TILE + max(len(luma) - 1, 2 * len(chroma) - 2))
        self._down = torch.stack((self._band(luma), self._band(chroma))).half().to(device)
        self._across = torch.stack((self._band(luma), self._band(chroma, step=2))).half().to(device)

    def _band(self, weights: Weights, step: int = 1) -> Tensor:
        """float32 [TILE, window]: in each row the weights, `step` columns apart, a column further than in the last."""
        band = torch.zeros(TILE, self._window)
        for place, weight in enumerate(weights):
            band.diagonal(step * place)[:TILE] = weight
        return band

    def __call__(self, nv12: Tensor, logits: Tensor, out: Tensor | None = None) -> Tensor:
        self._size.check_nv12(nv12)
        check_alike(nv12, logits, self._alpha_size)
        height, width = self._sides
        result = torch.empty_like(nv12) if out is None else out
        tiles = [triton.cdiv(rows, TILE) * triton.cdiv(width, TILE) for rows in (height, height // 2)]
        sizes = height, width, *self._alpha_size, tiles[0], *self._reach
        given = nv12, alpha_of(logits).contiguous(), result, self._down, self._across
        _composite[sum(tiles), len(nv12)](*given, *sizes, tile=TILE, window=self._window, num_warps=8)
        return result

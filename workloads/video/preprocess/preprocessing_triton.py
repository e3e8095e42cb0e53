"""Preprocessing of NV12 in one kernel in Triton: each program samples, converts and normalizes a run of pixels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from workloads.video.clip.colour import FrameSize
from workloads.video.clip.video_file import Matrix
from workloads.video.preprocess.preprocessing import gains_of, input_size, normalization

BLOCK = 512  # pixels of a program


@triton.jit
def tap(sample, samples, pixels):  # type: ignore[no-untyped-def]
    """The pixels of a side that a sample mixes, and the share of the second: as `preprocessing.taps` has them."""
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


class OneKernel:
    """The network's input from NV12, as `preprocessing.OnDevice` makes it, by one launch."""

    def __init__(
        self,
        height: int,
        width: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        matrix: Matrix = "bt601",
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._size, self._input = FrameSize(height, width), input_size(height, width)
        self._sides = height, width
        h, w = self._input
        self._exact = height % (2 * h) == h and width % (2 * w) == w  # an odd multiple: a sample is a pixel's middle
        scale, shift = (each.view(3, 1) for each in normalization())
        self._table = torch.cat((gains_of(matrix).view(3, 3).T, scale, shift), 1).contiguous().to(device)
        self._form = dtype, layout

    def __call__(self, nv12: Tensor) -> Tensor:
        self._size.check_nv12(nv12)
        (h, w), (dtype, layout) = self._input, self._form
        result = torch.empty((len(nv12), 3, h, w), dtype=dtype, device=nv12.device, memory_format=layout)
        grid = triton.cdiv(h * w, BLOCK), len(nv12)
        sizes = *self._sides, h, w, *result.stride()
        _preprocess[grid](nv12, self._table, result, *sizes, exact=self._exact, block=BLOCK, num_warps=4)
        return result

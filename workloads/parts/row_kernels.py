"""Kernels in Triton over rows: a program reads its row once and writes its result once, with float32 in between."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

EPS = 1e-6
CHUNK = 4096  # values of a row that is longer than the registers hold


@triton.jit  # type: ignore[untyped-decorator]
def _norm(x, residual, added, normal, width, eps, centred: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, block)
    inside = tl.arange(0, block) < width
    total = tl.load(x + at, inside, 0.0).to(tl.float32) + tl.load(residual + at, inside, 0.0).to(tl.float32)
    total = total.to(added.dtype.element_ty)
    tl.store(added + at, total, inside)
    wide = total.to(tl.float32)
    if centred:
        wide = tl.where(inside, wide - tl.sum(wide) / width, 0.0)
    scale = tl.rsqrt(tl.sum(wide * wide) / width + eps)
    tl.store(normal + at, wide * scale, inside)


@triton.jit  # type: ignore[untyped-decorator]
def _swiglu(gate, up, result, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    wide = tl.load(gate + at, inside, 0.0).to(tl.float32)
    # Eager code rounds the gate before it multiplies.
    gated = (wide * tl.sigmoid(wide)).to(result.dtype.element_ty).to(tl.float32)
    tl.store(result + at, gated * tl.load(up + at, inside, 0.0).to(tl.float32), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _softmax(scores, shares, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * width + tl.arange(0, block)
    inside = tl.arange(0, block) < width
    wide = tl.load(scores + at, inside, -float("inf")).to(tl.float32)
    powers = tl.exp(wide - tl.max(wide))
    tl.store(shares + at, powers / tl.sum(powers), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _cross_entropy(scores, classes, losses, width: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of the powers grows with the largest score seen so far (Milakov and Gimelshein, 2018): one pass."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, width, block):
        inside = start + tl.arange(0, block) < width
        wide = tl.load(scores + row * width + start + tl.arange(0, block), inside, -float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(wide))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(wide - larger))
        largest = larger
    own = tl.load(scores + row * width + tl.load(classes + row)).to(tl.float32)
    tl.store(losses + row, tl.log(total) + largest - own)


def _warps(block: int) -> int:
    return min(16, max(4, block // 512))


def _add_and_norm(x: Tensor, residual: Tensor, centred: bool) -> tuple[Tensor, Tensor]:
    """x and residual: [rows, width]."""
    rows, width = x.shape
    added, normal = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _norm[(rows,)](x, residual, added, normal, width, EPS, centred=centred, block=block, num_warps=_warps(block))
    return added, normal


def rms_norm(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    return _add_and_norm(x, residual, centred=False)


def layer_norm(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    return _add_and_norm(x, residual, centred=True)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    result, block = torch.empty_like(gate), 2048
    _swiglu[(triton.cdiv(gate.numel(), block),)](gate, up, result, gate.numel(), block=block, num_warps=4)
    return result


def softmax(scores: Tensor) -> Tensor:
    """scores: [rows, classes]."""
    rows, width = scores.shape
    shares, block = torch.empty_like(scores), triton.next_power_of_2(width)
    _softmax[(rows,)](scores, shares, width, block=block, num_warps=_warps(block))
    return shares


def cross_entropy(scores: Tensor, classes: Tensor) -> Tensor:
    """scores: [rows, classes], classes: int64 [rows]; float32 [rows]."""
    rows, width = scores.shape
    losses = torch.empty(rows, device=scores.device, dtype=torch.float32)
    _cross_entropy[(rows,)](scores, classes, losses, width, block=CHUNK, num_warps=8)
    return losses


@triton.jit  # type: ignore[untyped-decorator]
def _scale(x, result, rows, width, along_rows: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """The values of a program are neighbours in memory along a row. Along a column each is a row's width away."""
    if along_rows:
        row, column = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    else:
        column, row = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    at, inside = row.to(tl.int64) * width + column, (row < rows) & (column < width)
    tl.store(result + at, tl.load(x + at, inside) * 2 + 1, inside)


def scale(x: Tensor, block: int, along_rows: bool) -> Tensor:
    """2 x + 1 of float32 [rows, width], by programs of `block` values along a row or along a column."""
    rows, width = x.shape
    result = torch.empty_like(x)
    lines, length = (rows, width) if along_rows else (width, rows)
    warps = max(1, min(8, block // 128))
    _scale[(lines, triton.cdiv(length, block))](x, result, rows, width, along_rows, block, num_warps=warps)
    return result

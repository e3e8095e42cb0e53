"""Attention of the newest token of each text to a cache in pages, in Triton: each page is read where it lies, once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # of a product of a tensor core; a group of queries that share keys has fewer
TOKENS = 128  # of an iteration


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    queries, keys, values, table, positions, attended, largests, sums, pages, position_stride,
    kv_heads: tl.constexpr, group: tl.constexpr, head: tl.constexpr, page: tl.constexpr,
    rows: tl.constexpr, tokens: tl.constexpr, tokens_of_split: tl.constexpr,
):  # fmt: skip
    """A program attends to a part of one text, for the queries that share a head of keys (Flash-Decoding, 2023)."""
    text, shared = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
    length = tl.load(positions + text * position_stride) + 1
    row, column = tl.arange(0, rows), tl.arange(0, head)
    query = tl.load(
        queries + (tl.program_id(0) * group + row[:, None]) * head + column[None, :], row[:, None] < group, 0.0
    )
    attended_part = tl.zeros((rows, head), tl.float32)
    largest = tl.full((rows,), -float("inf"), tl.float32)
    total = tl.zeros((rows,), tl.float32)
    for start in range(0, tokens_of_split, tokens):
        token = tl.program_id(1) * tokens_of_split + start + tl.arange(0, tokens)
        inside = token < length
        number = tl.load(table + text * pages + token // page, inside, 0)
        at = ((number * kv_heads + shared) * page + token % page)[:, None] * head + column[None, :]
        key = tl.load(keys + at, inside[:, None], 0.0)
        value = tl.load(values + at, inside[:, None], 0.0)
        scores = tl.dot(query, tl.trans(key)) * (1 / head**0.5)
        scores = tl.where(inside[None, :], scores, -1e30)
        larger = tl.maximum(largest, tl.max(scores, 1))
        kept, powers = tl.exp(largest - larger), tl.exp(scores - larger[:, None])
        total = total * kept + tl.sum(powers, 1)
        attended_part = attended_part * kept[:, None] + tl.dot(powers.to(value.dtype), value)
        largest = larger
    first = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * group
    tl.store(attended + (first + row[:, None]) * head + column[None, :], attended_part, row[:, None] < group)
    tl.store(largests + first + row, largest, row < group)
    tl.store(sums + first + row, total, row < group)


def attend(queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, positions: Tensor, splits: int) -> Tensor:
    """queries [texts, heads, 1, head], keys and values [pages, kv_heads, tokens of a page, head]: as the queries.

    `positions` is int64 [texts], or [1] for all texts. A split must have whole iterations.
    """
    texts, heads, _, head = queries.shape
    _, kv_heads, page, _ = keys.shape
    parts = texts * kv_heads, splits, heads // kv_heads
    attended = torch.empty(*parts, head, dtype=torch.float32, device=queries.device)
    largests, sums = (torch.empty(parts, dtype=torch.float32, device=queries.device) for _ in range(2))
    tokens_of_split = triton.cdiv(table.shape[1] * page, splits)
    _attend[(texts * kv_heads, splits)](
        queries.contiguous(), keys, values, table, positions, attended, largests, sums, table.shape[1],
        position_stride=int(len(positions) > 1),
        kv_heads=kv_heads, group=heads // kv_heads, head=head, page=page, rows=ROWS,
        tokens=min(TOKENS, tokens_of_split),
        tokens_of_split=tokens_of_split, num_warps=4, num_stages=3,
    )  # fmt: skip
    shares = torch.exp(largests - largests.amax(dim=1, keepdim=True))
    joined = (attended * shares[..., None]).sum(dim=1) / (sums * shares).sum(dim=1)[..., None]
    return joined.to(queries.dtype).view(queries.shape)

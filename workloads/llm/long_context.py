"""A token of each of several texts of 8,192 tokens: their keys and values are most of the bytes that a step reads.

The reference has memory for texts of twice the length, and a mask hides what is not there yet, but attention reads it.
Attention over the tokens that are there reads half as much. A server keeps them in pages that lie anywhere in memory,
so that a text takes no more memory than it has tokens (Kwon et al., PagedAttention, 2023). Keys and values of earlier
tokens are random: to read texts of this length takes longer than to measure a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.llm.context import decoder, draw_ids, dtype, shape
from workloads.llm.model import UNWRITTEN, Cache, Decoder, StaticCache
from workloads.llm.rungs import compile_blocks
from workloads.parts.compiled import miscount
from workloads.parts.graph_capture import replayed
from workloads.parts.random_inputs import generator_of

TOKENS = {"cuda": 8192, "cpu": 1024}  # of each text, with the new one
PAGE = 16  # tokens
SPLITS = 8  # of a text: programs of the paged kernel for one head of keys


def tokens(context: Context, index: int) -> Tensor:
    """The newest token of each text: int64 [items, 1]."""
    return draw_ids(context, index, context.items, 1)


def earlier_tokens(context: Context, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values [texts, kv_heads, tokens, head]: of sizes with which attention is as large as a layer's input.

    With keys of twice the size, a query prefers 150 of the tokens. Then the rounding of one layer changes the choice of
    the next one, and bfloat16 is 11 % off FP32 after 16 layers, where it is 2 % off with these.
    """
    random = generator_of(context, layer)
    size = context.items, shape(context).kv_heads, TOKENS[context.device.type] - 1, shape(context).head
    keys, values = (torch.randn(size, generator=random, device=context.device) * scale for scale in (1, 36))
    return keys.to(dtype(context)), values.to(dtype(context))


class SlicedCache(StaticCache):
    """Attention over the tokens that are there, the new one included, by the platform's flash kernel."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        self.keys.index_copy_(2, positions, keys)
        self.values.index_copy_(2, positions, values)
        there = TOKENS[queries.device.type]
        keys, values = self.keys[:, :, :there], self.values[:, :, :there]
        return F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)


class PagedCache:  # cuda only
    """Pages of 16 tokens anywhere in memory, read where they lie; `table` is int64 [texts, pages of a text]."""

    def __init__(self, context: Context, table: Tensor) -> None:
        size = table.numel(), shape(context).kv_heads, PAGE, shape(context).head
        self.keys, self.values = (
            torch.full(size, UNWRITTEN, dtype=dtype(context), device=table.device) for _ in range(2)
        )
        self.table = table

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        from workloads.llm.paged_attention import attend  # which needs Triton

        pages, places = self.table[:, positions // PAGE], positions % PAGE  # [texts, 1], [1]
        self.keys[pages, :, places] = keys.transpose(1, 2)  # [texts, 1, kv_heads, head]
        self.values[pages, :, places] = values.transpose(1, 2)
        return attend(queries, self.keys, self.values, self.table, positions, SPLITS)


def with_room(context: Context) -> Side:
    """Memory for twice as many tokens, and a mask."""
    return _in_one_piece(context, StaticCache)


def flash(context: Context) -> Side:
    """Attention over the tokens that are there. A server captures a graph for each of several lengths."""
    return _in_one_piece(context, SlicedCache)


def _in_one_piece(context: Context, kind: type[StaticCache]) -> Side:
    tokens = TOKENS[context.device.type]
    model, caches = decoder(context, 2 * tokens), []
    for layer in range(len(model.layers)):
        cache = kind(shape(context), context.items, 2 * tokens, dtype(context), context.device)
        cache.keys[:, :, : tokens - 1], cache.values[:, :, : tokens - 1] = earlier_tokens(context, layer)
        caches.append(cache)
    return _side(context, model, caches)


def paged(context: Context) -> Side:  # cuda only
    """Pages of 16 tokens, which one kernel reads where they lie. The graph is right for every length."""
    model, last = decoder(context, 2 * TOKENS[context.device.type]), TOKENS[context.device.type] - 1
    pages = torch.randperm(
        context.items * (last + 1) // PAGE, generator=torch.Generator().manual_seed(context.seed)
    ).to(context.device)
    table, caches = pages.view(context.items, -1), []
    for layer in range(len(model.layers)):
        cache = PagedCache(context, table)
        for stored, earlier in zip((cache.keys, cache.values), earlier_tokens(context, layer), strict=True):
            whole = F.pad(earlier, (0, 0, 0, 1), value=UNWRITTEN).unflatten(2, (-1, PAGE))  # type: ignore[no-untyped-call]
            stored[table] = whole.transpose(1, 2)  # [texts, pages, kv_heads, PAGE, head]
        caches.append(cache)
    return _side(context, model, caches)


def _side(context: Context, model: Decoder, caches: Sequence[Cache]) -> Side:
    """Compiled layers and one CUDA graph; on a CPU the layers run eagerly."""
    position = torch.tensor([TOKENS[context.device.type] - 1], device=context.device)

    @torch.inference_mode()
    def step(ids: Tensor) -> Tensor:
        logits: Tensor = model(ids, position, caches)[:, 0]
        return logits

    if context.device.type == "cpu":
        return Side(step, model)
    graphs = compile_blocks(model)
    return Side(replayed(context, step, tokens(context, 0)), model, engaged=partial(miscount, graphs))

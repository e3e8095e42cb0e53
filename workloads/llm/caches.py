"""Attention caches of one layer: a growing cache, two of fixed size, a paged cache, and attention without a cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.llm.model import Shape

BLOCK = 16  # tokens
UNWRITTEN = 100.0  # a step that reads memory that no step wrote gets wrong logits, in any precision


class GrowingCache:
    """Each token copies all keys and values to a tensor that is longer by one; attention writes all its scores.

    The caller sets `length`, the number of tokens before the new ones: slicing needs it on the host.
    """

    def __init__(self, shape: Shape, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        self.keys = self.values = torch.empty(batch, shape.kv_heads, 0, shape.head, dtype=dtype, device=device)
        self.length = 0

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        keys = torch.cat((self.keys[:, :, : self.length], keys), dim=2)
        values = torch.cat((self.values[:, :, : self.length], values), dim=2)
        if keys.shape[2] > self.keys.shape[2]:
            self.keys, self.values = keys, values
        return attention_by_hand(queries, keys, values, positions)


def attention_by_hand(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Repeats keys and values for each query head, and writes the scores and their shares to memory."""
    repeats = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)
    scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5  # [batch, heads, new, tokens]
    later = torch.arange(keys.shape[2], device=positions.device) > positions[:, None]
    shares = torch.softmax(scores.masked_fill(later, -torch.inf).float(), dim=-1).to(values.dtype)
    return shares @ values


class StaticCache:
    """Memory for the whole context; new keys and values are written in place, and a mask hides the rest."""

    def __init__(self, shape: Shape, batch: int, context_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        size = (batch, shape.kv_heads, context_tokens, shape.head)
        self.keys, self.values = (torch.full(size, UNWRITTEN, dtype=dtype, device=device) for _ in range(2))
        self.tokens = torch.arange(context_tokens, device=device)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        self.keys.index_copy_(2, positions, keys)
        self.values.index_copy_(2, positions, values)
        return grouped_attention(queries, self.keys, self.values, self.tokens <= positions[:, None])


def grouped_attention(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Attention whose query heads share keys and values: the heads of a group are rows of one product.

    `seen` is bool [new, tokens].
    """
    batch, heads, new, head = queries.shape
    group = heads // keys.shape[1]
    rows = queries.reshape(batch, keys.shape[1], group * new, head)
    attended = F.scaled_dot_product_attention(rows, keys, values, attn_mask=seen.repeat(group, 1))
    return attended.reshape(batch, heads, new, head)


class FlashCache(StaticCache):  # cuda only
    """Attention of one new token by the platform's flash kernel, which gets the tokens up to it and needs no mask.

    The caller sets `length`, the number of tokens with the new one.
    """

    length = 0

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if len(positions) > 1:
            return super().attend(queries, keys, values, positions)
        self.keys.index_copy_(2, positions, keys)
        self.values.index_copy_(2, positions, values)
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)


class PagedCache:
    """Blocks of 16 tokens anywhere in memory; `table[sequence, n]` is the block of tokens 16 n to 16 n + 15.

    Attention gathers the blocks of each sequence first. `table` is int64 [batch, blocks of a sequence] (Kwon et al.,
    PagedAttention, 2023).
    """

    def __init__(self, shape: Shape, table: Tensor, dtype: torch.dtype) -> None:
        size = (table.numel(), shape.kv_heads, BLOCK, shape.head)
        self.keys, self.values = (torch.full(size, UNWRITTEN, dtype=dtype, device=table.device) for _ in range(2))
        self.table, self.tokens = table, torch.arange(table.shape[1] * BLOCK, device=table.device)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        blocks, places = self.table[:, positions // BLOCK], positions % BLOCK  # [batch, new], [new]
        self.keys[blocks, :, places] = keys.transpose(1, 2)  # [batch, new, kv_heads, head]
        self.values[blocks, :, places] = values.transpose(1, 2)
        seen = self.tokens <= positions[:, None]
        return grouped_attention(queries, self._gather(self.keys), self._gather(self.values), seen)

    def _gather(self, blocks: Tensor) -> Tensor:
        return blocks[self.table].transpose(1, 2).flatten(2, 3)  # [batch, kv_heads, tokens, head]


class PromptByHand:
    """No cache: all tokens of the sequence are new."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        return attention_by_hand(queries, keys, values, positions)


class PromptFused:
    """No cache; attention is PyTorch's fused kernel, which keeps blocks of scores on the chip."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        repeats = queries.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)

"""Attention caches of one layer: a growing cache, one of fixed size, and attention without a cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.llm.model import Shape

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

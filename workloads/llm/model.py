"""A decoder of the Llama shape: RMSNorm, rotary positions, grouped-query attention, SwiGLU, one table of embeddings.

The model computes logits for its input tokens. A cache stores the keys and values of earlier tokens, and computes the
attention of new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

UNWRITTEN = 100.0  # a step that reads memory that no step wrote gets wrong logits, in any precision


@dataclass(frozen=True)
class Shape:
    """The numbers of a decoder. `rope_factor` > 1 stretches rotary positions as Llama 3.1 does."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    rope_base: float = 500_000.0
    rope_factor: float = 1.0
    norm_eps: float = 1e-5

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head

    @property
    def weights(self) -> int:
        """The values of all matrices, which every token reads once; 0.01 % more are in the norms."""
        return self.attention_weights + self.layers * 3 * self.width * self.hidden + self.vocabulary * self.width

    @property
    def attention_weights(self) -> int:
        """The values of the matrices of attention, in all layers."""
        return self.layers * 2 * self.width * (self.width + self.kv_width)

    def cached_values(self, tokens: int) -> int:
        """The keys and values of so many tokens."""
        return 2 * self.layers * tokens * self.kv_width

    def attention_flops(self, tokens: int) -> float:
        """The two products of one token with so many tokens."""
        return 4.0 * self.layers * tokens * self.width


class Cache(Protocol):
    """The keys and values of earlier tokens in one layer."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        """Stores the new keys and values; returns the attention of each new token over all tokens up to itself.

        queries [batch, heads, new, head], keys and values [batch, kv_heads, new, head], positions int64 [new].
        """


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], positions: Tensor, cache: Cache) -> Tensor:
        queries, keys, values = (self._heads(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
        attended = cache.attend(rotate(queries, turn), rotate(keys, turn), values, positions)
        joined: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))  # [batch, new, width]
        return joined

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1, self.shape.head).transpose(1, 2)  # [batch, heads, new, head]


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turns the pairs (i, i + head / 2) of each head by the angles of its position (Su et al., RoFormer, 2021)."""
    cosine, sine = turn  # [new, head]
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, GLU Variants Improve Transformer, 2020)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], positions: Tensor, cache: Cache) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, positions, cache)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class Decoder(nn.Module):
    """Logits of the next token after each given one. The modules have the names of Hugging Face's checkpoints."""

    cosines: Tensor
    sines: Tensor
    run_block: Callable[..., Tensor] = staticmethod(Block.__call__)  # a rung may compile it

    def __init__(self, shape: Shape, context_tokens: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        angles = torch.outer(torch.arange(context_tokens), frequencies(shape)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos(), persistent=False)  # [context, head]
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor, caches: Sequence[Cache], last_only: bool = False) -> Tensor:
        """ids int64 [batch, new], positions int64 [new], a cache for each layer.

        Returns float32 [batch, new, vocabulary]; with `last_only` for the last token alone: [batch, 1, vocabulary].
        """
        x = self.embed_tokens(ids)
        turn = self.cosines[positions], self.sines[positions]
        for block, cache in zip(self.layers, caches, strict=True):
            x = self.run_block(block, x, turn, positions, cache)
        logits: Tensor = self.lm_head(self.norm(x[:, -1:] if last_only else x))
        return logits.float()


def frequencies(shape: Shape) -> Tensor:
    """The angle that a pair turns from one position to the next: float32 [head / 2].

    With `rope_factor`, long waves are stretched by it, short ones stay, and those between change smoothly (Llama 3.1,
    for an original context of 8,192 tokens).
    """
    pairs = torch.arange(0, shape.head, 2, dtype=torch.float32) / shape.head
    angles = shape.rope_base**-pairs
    waves_in_context = 8192 * angles / (2 * torch.pi)
    kept = ((waves_in_context - 1) / 3).clamp(0, 1)
    return angles * (kept + (1 - kept) / shape.rope_factor)


def make_decoder(shape: Shape, context_tokens: int, seed: int, dtype: torch.dtype, device: torch.device) -> Decoder:
    """A decoder with random weights, whose layers have outputs of about unit variance.

    Embeddings are small, so that the layers decide the logits: otherwise the likeliest token would be the last one. The
    largest weight of a row is 1.7 standard deviations: one scale a row then leaves int8 small errors.
    """
    with device:
        model = Decoder(shape, context_tokens)
    random = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.fill_(1)
            else:
                largest = 3**0.5 * (0.02 if "embed" in name else weight.shape[1] ** -0.5)
                weight.uniform_(-largest, largest, generator=random)
    return model.to(dtype).eval().requires_grad_(False)


def attention_by_hand(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Repeats keys and values for each query head, and writes the scores and their shares to memory."""
    repeats = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)
    scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5  # [batch, heads, new, tokens]
    later = torch.arange(keys.shape[2], device=positions.device) > positions[:, None]
    shares = torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1, dtype=torch.float32).to(values.dtype)
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

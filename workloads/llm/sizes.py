"""The numbers of a decoder, and the work of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpugate.workload import Context, Size


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


LLAMA_1B = Shape(vocabulary=128_256, width=2048, layers=16, heads=32, kv_heads=8, hidden=8192)  # 1.24 B weights
SMALL = Shape(vocabulary=8192, width=512, layers=6, heads=8, kv_heads=2, hidden=1408)  # 21 M weights, for a CPU

PROMPT_TOKENS, NEW_TOKENS = 128, 128
CONTEXT_TOKENS = PROMPT_TOKENS + NEW_TOKENS
MIDDLE = PROMPT_TOKENS + NEW_TOKENS // 2  # here a step reads as many keys and values as the average new token


def shape(context: Context) -> Shape:
    return SMALL if context.device.type == "cpu" else LLAMA_1B


def dtype(context: Context) -> torch.dtype:
    return torch.float32 if context.device.type == "cpu" else torch.bfloat16


def decoding_size(shape: Shape, bytes_per_value: int, batch: int, tokens: int = 1, cached: int = MIDDLE) -> Size:
    """A step computes `tokens` tokens of each of `batch` sequences, and must read the weights once.

    FLOPs: 2 per weight and token, and attention over the prompt and half of the new tokens. Bytes: all weights, and the
    keys and values of each sequence.
    """
    flops = 2.0 * shape.weights + shape.attention_flops(cached)
    return Size(
        batch * tokens, flops=flops * batch * tokens, bytes=bytes_of_step(shape, bytes_per_value, batch, cached=cached)
    )


def bytes_of_step(shape: Shape, bytes_per_value: int, batch: int, narrow: int = 0, cached: int = MIDDLE) -> float:
    """All weights, of which `narrow` have one byte, and the keys and values of `batch` sequences."""
    values = shape.weights + batch * shape.cached_values(cached)
    return float(bytes_per_value * (values - narrow) + narrow)


def prompt_size(shape: Shape, bytes_per_value: int, tokens: int) -> Size:
    """FLOPs: 2 per weight and token, and attention over half of the tokens; the last token alone gets logits."""
    table = shape.vocabulary * shape.width
    flops = 2.0 * (tokens * (shape.weights - table) + table) + tokens * shape.attention_flops(tokens // 2)
    return Size(tokens, flops=flops, bytes=float(bytes_per_value * shape.weights))

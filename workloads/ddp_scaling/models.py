"""Two models whose gradients cross GPUs, and tiny ones for a CPU: both compute in bf16 as autocast does.

A transformer computes for long. A perceptron has as many weights and a quarter of the kernels, so that the wire bounds
its step of few tokens: the step of the transformer on 1,024 tokens was bound by launches, 7 ms of 9 on an H200.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, SMALL_WORDS = 8192, 2048
TOKENS, SMALL_TOKENS = 64, 16
LAYERS = 2


class Language(nn.Module):
    """A transformer that predicts each next token from the tokens before it, without dropout.

    A backward pass of flash attention adds the gradient of a query in any order, over blocks of 128 keys: 64 tokens are
    one block, and a step repeats its gradients.
    """

    def __init__(self, words: int, width: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.logits = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        """The logits [batch, tokens, words] of int64 [batch, tokens]."""
        later = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], ids.device)
        logits: Tensor = self.logits(self.layers(self.words(ids), mask=later, is_causal=True))
        return logits

    @property
    def blocks(self) -> list[nn.Module]:
        """The parts that are computed one after another."""
        return list(self.layers.layers)


class Perceptron(nn.Module):
    """A network that predicts each next token from one token."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(_wide_layer(width) for _ in range(LAYERS)))
        self.logits = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The logits [batch, tokens, words] of int64 [batch, tokens]."""
        logits: Tensor = self.logits(self.layers(self.words(ids)))
        return logits

    @property
    def blocks(self) -> list[nn.Module]:
        """The parts that are computed one after another."""
        return list(self.layers)


def _wide_layer(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width, bias=False), nn.GELU(), nn.Linear(width, width, bias=False))


Kind = Literal["transformer", "perceptron"]
Model = Language | Perceptron


def make(kind: Kind, device: torch.device) -> Model:
    """Makes the model with the same float32 weights on every rank."""
    torch.manual_seed(0)
    on_gpu = device.type == "cuda"
    words = WORDS if on_gpu else SMALL_WORDS
    if kind == "transformer":
        width, heads = (2048, 16) if on_gpu else (128, 4)
        return Language(words, width, heads).to(device)
    return Perceptron(words, 4096 if on_gpu else 128).to(device)


def draw(items: int, number: int, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draws batch `number` of a rank on the device: token ids and the ids that follow, int64 [items, tokens]."""
    chance = torch.Generator(device).manual_seed(1_000_003 * (number + 1) + rank)
    words, tokens = (WORDS, TOKENS) if device.type == "cuda" else (SMALL_WORDS, SMALL_TOKENS)
    ids = torch.randint(words, (items, tokens + 1), generator=chance, device=device)
    return ids[:, :-1], ids[:, 1:]


def loss(model: nn.Module, ids: Tensor, wanted: Tensor) -> Tensor:
    """The mean loss [] of one batch of one rank, float32. Matrix products have bf16 inputs and outputs."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        logits = model(ids)
        return F.cross_entropy(logits.flatten(0, -2), wanted.flatten())

"""ResNet-50 and a small transformer, whose gradients cross GPUs, and tiny models of the same form for a CPU."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 1000
IMAGE, SMALL_IMAGE = 224, 32
WORDS, SMALL_WORDS = 32_768, 2048
TOKENS, SMALL_TOKENS = 512, 16


class Language(nn.Module):
    """A transformer that predicts each next token from the tokens before it, without dropout."""

    def __init__(self, words: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.logits = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        """The logits [batch, tokens, words] of int64 [batch, tokens]."""
        later = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], ids.device)
        logits: Tensor = self.logits(self.layers(self.words(ids), mask=later, is_causal=True))
        return logits


def make(name: str, device: torch.device) -> nn.Module:
    """Makes the model with the same weights on every rank. Batch norm keeps no statistics: a step changes nothing."""
    torch.manual_seed(0)
    on_gpu = device.type == "cuda"
    if name == "transformer":
        words, width, heads, layers = (WORDS, 768, 12, 8) if on_gpu else (SMALL_WORDS, 128, 4, 4)
        return Language(words, width, heads, layers).to(device)
    from torchvision.models.resnet import Bottleneck, ResNet  # takes seconds

    norm = partial(nn.BatchNorm2d, track_running_stats=False)
    blocks, width = ([3, 4, 6, 3], 64) if on_gpu else ([1, 1, 1, 1], 8)
    network: nn.Module = ResNet(Bottleneck, blocks, num_classes=CLASSES, width_per_group=width, norm_layer=norm)
    return network.to(device)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The parts of a model that are computed one after another."""
    if isinstance(model, Language):
        return list(model.layers.layers)
    return [part for name, part in model.named_children() if name.startswith("layer")]


def draw(name: str, items: int, number: int, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draws batch `number` of a rank on the device: pictures and labels, or token ids and the ids that follow."""
    chance = torch.Generator(device).manual_seed(1_000_003 * (number + 1) + rank)
    on_gpu = device.type == "cuda"
    if name == "transformer":
        words, tokens = (WORDS, TOKENS) if on_gpu else (SMALL_WORDS, SMALL_TOKENS)
        ids = torch.randint(words, (items, tokens + 1), generator=chance, device=device)
        return ids[:, :-1], ids[:, 1:]
    side = IMAGE if on_gpu else SMALL_IMAGE
    pictures = torch.randn(items, 3, side, side, generator=chance, device=device)
    return pictures, torch.randint(CLASSES, (items,), generator=chance, device=device)


def loss(model: nn.Module, inputs: Tensor, wanted: Tensor) -> Tensor:
    """The mean loss [] of one batch of one rank."""
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, -2), wanted.flatten())

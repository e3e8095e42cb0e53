"""A token for each of 16 sequences, by passes over 1, 4 or all of them: the larger the batch, the fewer times the model
reads its weights."""

from __future__ import annotations

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.llm.checkpoint import decoder
from workloads.llm.rungs import make_static_caches
from workloads.llm.tokens import MIDDLE, shape, text

SEQUENCES = 16


def tokens(context: Context, index: int) -> Tensor:
    """The token at MIDDLE of each sequence: int64 [sequences, 1]."""
    random = torch.Generator().manual_seed(1_000_003 * context.seed + index)
    return torch.randint(shape(context).vocabulary, (SEQUENCES, 1), generator=random).to(context.device)


def in_batches(context: Context, batch: int) -> Side:
    """`SEQUENCES / batch` passes; each batch has caches of its own, with the text before MIDDLE."""
    model = decoder(context)
    before = text(context, SEQUENCES)[:, :MIDDLE].to(context.device)
    parts = [make_static_caches(context, batch) for _ in range(SEQUENCES // batch)]
    positions = torch.arange(MIDDLE + 1, device=context.device)
    with torch.inference_mode():
        for caches, ids in zip(parts, before.chunk(len(parts)), strict=True):
            model(ids, positions[:MIDDLE], caches, last_only=True)

    @torch.inference_mode()
    def step(inputs: Tensor) -> Tensor:
        logits = [
            model(ids, positions[MIDDLE:], caches) for caches, ids in zip(parts, inputs.chunk(len(parts)), strict=True)
        ]
        return torch.cat(logits)[:, 0]

    return Side(step, model)

"""A token for each of 16 sequences, by passes over some or all of them: the larger the batch, the fewer times the model
reads its weights."""

from __future__ import annotations

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.llm.checkpoint import decoder
from workloads.llm.rungs import capture_on_ids, make_static_caches, read_text
from workloads.llm.tokens import MIDDLE, draw_ids, text

SEQUENCES = 16


def tokens(context: Context, index: int) -> Tensor:
    """The token at MIDDLE of each sequence: int64 [sequences, 1]."""
    return draw_ids(context, index, SEQUENCES, 1)


def in_batches(context: Context, batch: int) -> Side:
    """`SEQUENCES / batch` passes; each batch has caches of its own, with the text before MIDDLE."""
    model = decoder(context)
    parts = [make_static_caches(context, batch) for _ in range(SEQUENCES // batch)]
    for caches, ids in zip(parts, text(context, SEQUENCES).chunk(len(parts)), strict=True):
        read_text(model, caches, ids)
    position = torch.tensor([MIDDLE], device=context.device)

    @torch.inference_mode()
    def step(inputs: Tensor) -> Tensor:
        logits = [model(ids, position, caches) for caches, ids in zip(parts, inputs.chunk(len(parts)), strict=True)]
        return torch.cat(logits)[:, 0]

    if context.device.type == "cuda":
        # Launches would bound the passes, and make a batch of 16 always 16 times as fast.
        return Side(capture_on_ids(context, step, SEQUENCES, 1))  # cuda only
    return Side(step, model)

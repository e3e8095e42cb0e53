"""A token for each of 16 sequences, by passes over some or all of them: the larger the batch, the fewer times the model
reads its weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.llm.checkpoint import decoder
from workloads.llm.rungs import capture, make_static_caches, read_text
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

    return capture_passes(context, step) if context.device.type == "cuda" else Side(step, model)  # cuda only


def capture_passes(context: Context, run: Callable[[Tensor], Tensor]) -> Side:  # cuda only
    """All passes as one CUDA graph: launches would bound them, and make a batch of 16 always 16 times as fast."""
    captured_ids = torch.zeros(SEQUENCES, 1, dtype=torch.int64, device=context.device)
    replay = capture(context, lambda: run(captured_ids))

    def step(ids: Tensor) -> Tensor:
        captured_ids.copy_(ids, non_blocking=True)
        return replay()

    return Side(step)

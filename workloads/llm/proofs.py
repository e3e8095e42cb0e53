"""The logits of a side that decodes token by token are those of the whole text at once in FP32."""

from __future__ import annotations

import torch

from gpugate.errors import DisprovedError
from gpugate.workload import Build, Context
from workloads.llm.caches import PromptByHand
from workloads.llm.checkpoint import decoder
from workloads.llm.tokens import MIDDLE, text, token_at

POSITIONS = range(MIDDLE, MIDDLE + 16)


def compare_with_fp32(build: Build, largest: float, context: Context) -> str:
    """Compares the logits at POSITIONS, one step after the other, by relative L2.

    Raises DisprovedError where the difference exceeds `largest`.
    """
    ids = text(context, context.items)[:, : POSITIONS.stop]
    expected, side = whole_text_logits(context, ids)[:, POSITIONS.start :], build(context)
    steps = [side.step(token_at(context, ids[:, position : position + 1], position)).clone() for position in POSITIONS]
    side.close()
    difference = float((torch.stack(steps, dim=1) - expected).norm() / expected.norm())
    if difference > largest:
        raise DisprovedError(
            f"logits differ from those of the whole text in FP32 by {difference:.1e}, more than {largest:.1e}"
        )
    return f"logits within {difference:.1e} of the whole text in FP32 (at most {largest:.1e})"


@torch.inference_mode()
def whole_text_logits(context: Context, ids: torch.Tensor) -> torch.Tensor:
    """float32 [batch, tokens, vocabulary] for ids [batch, tokens], without any cache."""
    model = decoder(context, dtype=torch.float32)
    positions = torch.arange(ids.shape[1], device=context.device)
    logits: torch.Tensor = model(ids, positions, [PromptByHand()] * len(model.layers))
    return logits

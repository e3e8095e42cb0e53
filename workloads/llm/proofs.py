"""The logits of a side that decodes token by token are those of the whole text at once in FP32."""

from __future__ import annotations

import torch

from gpugate.errors import DisprovedError
from gpugate.workload import Build, Context
from workloads.llm.caches import PromptByHand
from workloads.llm.checkpoint import decoder
from workloads.llm.tokens import CONTEXT_TOKENS, PROMPT_TOKENS, text, token_at

POSITIONS = range(PROMPT_TOKENS, CONTEXT_TOKENS, 8)


def compare_with_fp32(build: Build, largest: float, context: Context) -> str:
    """Compares logits at POSITIONS by relative L2; raises DisprovedError where the difference exceeds `largest`."""
    expected = whole_text_logits(context)[:, list(POSITIONS)]
    side = build(context)
    logits = torch.stack([side.step(token_at(context, position)).clone() for position in POSITIONS], dim=1)
    side.close()
    difference = float((logits - expected).norm() / expected.norm())
    if difference > largest:
        raise DisprovedError(
            f"logits differ from those of the whole text in FP32 by {difference:.1e}, more than {largest:.1e}"
        )
    return f"logits within {difference:.1e} of the whole text in FP32 (at most {largest:.1e})"


@torch.inference_mode()
def whole_text_logits(context: Context) -> torch.Tensor:
    """float32 [batch, CONTEXT_TOKENS, vocabulary], without any cache."""
    model = decoder(context, dtype=torch.float32)
    positions = torch.arange(CONTEXT_TOKENS, device=context.device)
    logits: torch.Tensor = model(
        text(context, context.items).to(context.device), positions, [PromptByHand()] * len(model.layers)
    )
    return logits

"""A prompt in one step: thousands of tokens share each weight that is read, so arithmetic decides, not memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import Context, Side
from workloads.llm.caches import PromptByHand, PromptFused
from workloads.llm.checkpoint import decoder
from workloads.llm.model import Cache, Decoder, draw_ids, shape
from workloads.llm.quantized import FP8, replace_linear_layers, round_rows
from workloads.llm.rungs import capture_on_ids, compile_blocks, describe_graph_problem


def prompt(context: Context, index: int) -> Tensor:
    """int64 [1, items]."""
    return draw_ids(context, index, 1, context.items)


def by_hand(context: Context) -> Side:
    """Attention writes the scores of all pairs of tokens to memory."""
    model = decoder(context, context.items)
    return Side(_step(context, model, PromptByHand()), model)


def fused(context: Context) -> Side:
    """Attention is one fused kernel, which keeps the scores on the chip."""
    model = decoder(context, context.items)
    return Side(_step(context, model, PromptFused()), model)


def compiled(context: Context) -> Side:
    """torch.compile of a layer, once for all layers; on a GPU the whole prompt is one CUDA graph.

    Without a graph, the launches of 16 layers can take longer than their kernels, and arithmetic would not decide.
    """
    return _compiled(context, decoder(context, context.items))


def fp8(context: Context) -> Side:  # cuda only
    """Products of fp8 weights and fp8 activations in the feed-forward part; attention and logits stay in bf16.

    With attention in fp8 the logits after 16 layers were off by 20 % on an H100: both factors of a product are rounded.
    """
    model = decoder(context, context.items)
    replace_linear_layers(model.layers, Fp8Linear, kept="self_attn")
    return _compiled(context, model)


def _step(context: Context, model: Decoder, attention: Cache) -> Callable[[Tensor], Tensor]:
    caches, positions = [attention] * shape(context).layers, torch.arange(context.items, device=context.device)

    @torch.inference_mode()
    def step(ids: Tensor) -> Tensor:
        logits: Tensor = model(ids, positions, caches, last_only=True)[:, 0]
        return logits

    return step


def _compiled(context: Context, model: Decoder) -> Side:
    graphs = compile_blocks(model)
    step = _step(context, model, PromptFused())
    engaged = partial(describe_graph_problem, graphs)
    if context.device.type == "cuda":
        return Side(capture_on_ids(context, step, 1, context.items), engaged=engaged)  # cuda only
    return Side(step, model, engaged=engaged)


class Fp8Linear(nn.Module):
    """The product of two fp8 matrices with a scale for each row; those of the activations are chosen in each step."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = round_rows(linear.weight, FP8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale[None])

    def forward(self, x: Tensor) -> Tensor:
        rows, by_row = x.flatten(0, -2).float(), F.ScalingType.RowWise
        scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / torch.finfo(FP8).max
        product: Tensor = F.scaled_mm(
            (rows / scale).to(FP8), self.weight.t(), scale, by_row, self.scale, by_row, output_dtype=x.dtype
        )
        return product.reshape(*x.shape[:-1], -1)

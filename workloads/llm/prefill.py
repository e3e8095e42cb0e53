"""A prompt in one step: thousands of tokens share each weight that is read, so arithmetic decides, not memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.llm.context import decoder, draw_ids, shape
from workloads.llm.model import Cache, Decoder, PromptByHand
from workloads.llm.rungs import compile_blocks
from workloads.parts.compiled import miscount
from workloads.parts.graph_capture import replayed
from workloads.parts.quantized import Fp8Linear, replace_linear_layers


class PromptFused:
    """No cache; attention is PyTorch's fused kernel, which keeps blocks of scores on the chip."""

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        repeats = queries.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


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
    return Side(replayed(context, step, prompt(context, 0)), model, engaged=partial(miscount, graphs))

"""The rungs of decoding: each changes how one token is computed, and none changes its logits beyond rounding.

`context.items` is the batch. A side reads the text in one pass while it is built; a step computes the token after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gpugate.workload import Build, Context, DisprovedError, Side
from workloads.llm.context import CONTEXT_TOKENS, MIDDLE, Token, decoder, draw_ids, dtype, shape, text, token_at
from workloads.llm.model import Cache, Decoder, PromptByHand, StaticCache, attention_by_hand
from workloads.parts.compiled import compile_counted, miscount
from workloads.parts.graph_capture import replayed
from workloads.parts.quantized import Int8Linear, describe_wide_weights, replace_linear_layers

POSITIONS = range(MIDDLE, MIDDLE + 16)  # that the proof compares
SEQUENCES = 16


class GrowingCache:
    """Each token copies all keys and values to a tensor that is longer by one; attention writes all its scores.

    The caller sets `length`, the number of tokens before the new ones: slicing needs it on the host.
    """

    def __init__(self, context: Context) -> None:
        size = context.items, shape(context).kv_heads, 0, shape(context).head
        self.keys = self.values = torch.empty(size, dtype=dtype(context), device=context.device)
        self.length = 0

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        keys = torch.cat((self.keys[:, :, : self.length], keys), dim=2)
        values = torch.cat((self.values[:, :, : self.length], values), dim=2)
        if keys.shape[2] > self.keys.shape[2]:
            self.keys, self.values = keys, values
        return attention_by_hand(queries, keys, values, positions)


def growing(context: Context) -> Side:
    """Every token makes all caches one token longer, by torch.cat."""
    model = decoder(context)
    caches = [GrowingCache(context) for _ in model.layers]
    read_text(model, caches, text(context, context.items))
    compute = _step(model, caches)

    def step(token: Token) -> Tensor:
        for cache in caches:
            cache.length = int(token.host_position)
        return compute(token)

    return Side(step, model)


def static(context: Context) -> Side:
    """The caches have memory for the whole context, and attention is one fused kernel."""
    model, caches = decoder(context), make_static_caches(context, context.items)
    read_text(model, caches, text(context, context.items))
    return Side(_step(model, caches), model)


def compiled(context: Context) -> Side:
    """torch.compile of a layer, once for all layers: loops between the matrix products in place of small kernels."""
    model, caches = decoder(context), make_static_caches(context, context.items)
    read_text(model, caches, text(context, context.items))
    graphs = compile_blocks(model)
    return Side(_step(model, caches), model, engaged=partial(miscount, graphs))


def whole_step(context: Context) -> Side:
    """One launch a token: a CUDA graph whose layers are compiled once for all layers, and the product with the table
    apart; on a CPU, all layers are compiled together."""
    model, caches = decoder(context), make_static_caches(context, context.items)
    read_text(model, caches, text(context, context.items))
    if context.device.type == "cpu":
        run, graphs = compile_once(lambda ids, position: model(ids, position, caches), model)
        step = torch.inference_mode()(lambda token: run(token.ids, token.position)[:, 0])
        return Side(step, model, engaged=partial(miscount, graphs))
    layers = compile_blocks(model)  # cuda only
    model.lm_head.forward, table = compile_once(model.lm_head.forward, model)  # type: ignore[method-assign]  # cuda only
    step = capture_on_token(context, lambda ids, position: model(ids, position, caches)[:, 0])  # cuda only
    return Side(step, engaged=lambda: miscount(layers) or miscount(table))  # cuda only


def int8(context: Context) -> Side:
    """Weights in int8 with a scale for each row, without a compiler."""
    model, caches = decoder(context), make_static_caches(context, context.items)
    replace_linear_layers(model, Int8Linear)
    read_text(model, caches, text(context, context.items))
    return Side(_step(model, caches), engaged=partial(describe_wide_weights, model))


def make_static_caches(context: Context, batch: int, precision: torch.dtype | None = None) -> list[StaticCache]:
    size, precision = shape(context), precision or dtype(context)
    return [StaticCache(size, batch, CONTEXT_TOKENS, precision, context.device) for _ in range(size.layers)]


@torch.inference_mode()
def read_text(model: Decoder, caches: Sequence[Cache], ids: Tensor) -> None:
    """Fills the caches with the tokens before MIDDLE of the text `ids`."""
    model(ids[:, :MIDDLE], torch.arange(MIDDLE, device=ids.device), caches, last_only=True)


def _step(model: Decoder, caches: Sequence[Cache]) -> Callable[[Token], Tensor]:
    """The step that computes one token of each sequence, layer by layer."""
    return torch.inference_mode()(lambda token: model(token.ids, token.position, caches)[:, 0])


def compile_once(work: Callable[..., Tensor], model: Decoder) -> tuple[Callable[..., Tensor], list[bool]]:
    """Compiles `work` for one set of argument shapes; returns it with a list that gets an entry for each graph.

    On a GPU, coordinate descent tuning makes a product with one row a loop of the compiler.
    """
    graphs, on_gpu = list[bool](), model.cosines.is_cuda
    tuning = {"coordinate_descent_tuning": on_gpu}
    return compile_counted(lambda *arguments: work(*arguments), graphs, tuning), graphs


def compile_blocks(model: Decoder) -> list[bool]:
    model.run_block, graphs = compile_once(model.run_block, model)
    return graphs


def capture_on_token(context: Context, compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Token], Tensor]:
    ids = torch.zeros(context.items, 1, dtype=torch.int64, device=context.device)
    position = torch.full((1,), MIDDLE, device=context.device)  # the warm-up of a capture writes where every step does
    step = replayed(context, torch.inference_mode()(compute), ids, position)
    return lambda token: step(token.ids, token.position)


def batch_of_tokens(context: Context, index: int) -> Tensor:
    """The token at MIDDLE of each sequence: int64 [sequences, 1]."""
    return draw_ids(context, index, SEQUENCES, 1)


def in_batches(context: Context, batch: int) -> Side:
    """`SEQUENCES / batch` passes, each with caches of its own: the larger the batch, the rarer weights are read."""
    model = decoder(context)
    parts = [make_static_caches(context, batch) for _ in range(SEQUENCES // batch)]
    for caches, ids in zip(parts, text(context, SEQUENCES).chunk(len(parts)), strict=True):
        read_text(model, caches, ids)
    position = torch.tensor([MIDDLE], device=context.device)

    @torch.inference_mode()
    def step(inputs: Tensor) -> Tensor:
        logits = [model(ids, position, caches) for caches, ids in zip(parts, inputs.chunk(len(parts)), strict=True)]
        return torch.cat(logits)[:, 0]

    # Launches would bound the passes on a GPU, and make a batch of 16 always 16 times as fast.
    return Side(replayed(context, step, batch_of_tokens(context, 0)), model)


def compare_with_fp32(build: Build, largest: float, context: Context) -> str:
    """Compares the logits at POSITIONS, one step after the other, with those of the whole text without any cache.

    Raises DisprovedError where the relative L2 difference exceeds `largest`.
    """
    ids = text(context, context.items)[:, : POSITIONS.stop]
    model, places = decoder(context, precision=torch.float32), torch.arange(POSITIONS.stop, device=context.device)
    with torch.inference_mode():
        expected = model(ids, places, [PromptByHand()] * len(model.layers))[:, POSITIONS.start :]
    del model
    side = build(context)
    steps = [side.step(token_at(context, ids[:, place : place + 1], place)).clone() for place in POSITIONS]
    side.close()
    difference = float((torch.stack(steps, dim=1) - expected).norm() / expected.norm())
    if difference > largest:
        off = f"by {difference:.1e}, more than {largest:.1e}"
        raise DisprovedError(f"logits differ from those of the whole text in FP32 {off}")
    return f"logits within {difference:.1e} of the whole text in FP32 (at most {largest:.1e})"

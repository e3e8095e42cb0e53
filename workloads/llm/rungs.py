"""The rungs of decoding: each changes how one token is computed, and none changes its logits beyond rounding.

`context.items` is the batch. A side reads the text in one pass while it is built; a step computes the token after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from gpugate.workload import Context, Side
from workloads.llm.caches import BLOCK, FlashCache, GrowingCache, PagedCache, StaticCache
from workloads.llm.checkpoint import decoder
from workloads.llm.model import Cache, Decoder
from workloads.llm.quantized import FP8, INT8, not_quantized, quantize
from workloads.llm.tokens import CONTEXT_TOKENS, MIDDLE, Token, dtype, shape, text
from workloads.parts.graph_capture import recorded

Graphs = Sequence[fx.GraphModule]


def growing(context: Context) -> Side:
    """Every token makes all caches one token longer, by torch.cat."""
    model = decoder(context)
    caches = [GrowingCache(shape(context), context.items, dtype(context), context.device) for _ in model.layers]
    read_text(context, model, caches)

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        for cache in caches:
            cache.length = int(token.host_position)
        logits: Tensor = model(token.ids, token.position, caches)[:, 0]
        return logits

    return Side(step, model)


def static(context: Context) -> Side:
    """The caches have memory for the whole context, and attention is one fused kernel."""
    model, caches = decoder(context), static_caches(context, context.items)
    read_text(context, model, caches)

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        logits: Tensor = model(token.ids, token.position, caches)[:, 0]
        return logits

    return Side(step, model)


def compiled(context: Context) -> Side:
    """torch.compile of a layer, once for all layers: loops between the matrix products in place of small kernels."""
    model, caches = decoder(context), static_caches(context, context.items)
    read_text(context, model, caches)
    graphs = compile_blocks(model)

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        logits: Tensor = model(token.ids, token.position, caches)[:, 0]
        return logits

    return Side(step, model, engaged=partial(not_one_graph, graphs))


def whole_step(context: Context) -> Side:
    """One program a token: a CUDA graph of the compiled layers; on a CPU all layers are compiled together."""
    model, caches = decoder(context), static_caches(context, context.items)
    read_text(context, model, caches)
    if context.device.type == "cuda":
        return graphed(context, model, caches)  # cuda only
    run, graphs = compile_once(lambda ids, position: model(ids, position, caches))

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        logits: Tensor = run(token.ids, token.position)[:, 0]
        return logits

    return Side(step, model, engaged=partial(not_one_graph, graphs))


def int8(context: Context) -> Side:
    """Weights in int8 with a scale for each row; on a GPU within a graph, on a CPU without a compiler."""
    model, caches = decoder(context), static_caches(context, context.items)
    quantize(model, INT8)
    read_text(context, model, caches)
    if context.device.type == "cuda":
        return graphed(context, model, caches, INT8)  # cuda only

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        logits: Tensor = model(token.ids, token.position, caches)[:, 0]
        return logits

    return Side(step, engaged=partial(not_quantized, model, INT8))


def int8_torchao(context: Context) -> Side:  # cuda only
    """Weights in int8 by torchao, within a graph."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model, caches = decoder(context), static_caches(context, context.items)
    quantize_(model, Int8WeightOnlyConfig())
    read_text(context, model, caches)
    return graphed(context, model, caches)


def fp8(context: Context) -> Side:  # cuda only
    """Weights in fp8 (e4m3) with a scale for each row, within a graph."""
    model, caches = decoder(context), static_caches(context, context.items)
    quantize(model, FP8)
    read_text(context, model, caches)
    return graphed(context, model, caches, FP8)


def paged(context: Context) -> Side:
    """The caches are blocks of 16 tokens anywhere in memory, which attention gathers."""
    model = decoder(context)
    order = torch.randperm(
        context.items * CONTEXT_TOKENS // BLOCK, generator=torch.Generator().manual_seed(context.seed)
    )
    table = order.view(context.items, -1).to(context.device)
    caches = [PagedCache(shape(context), table, dtype(context)) for _ in model.layers]
    read_text(context, model, caches)

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        logits: Tensor = model(token.ids, token.position, caches)[:, 0]
        return logits

    return Side(step, model)


def flash(context: Context) -> Side:  # cuda only
    """Attention by the flash kernel alone, over the tokens that are there."""
    model = decoder(context)
    caches = [
        FlashCache(shape(context), context.items, CONTEXT_TOKENS, dtype(context), context.device) for _ in model.layers
    ]
    read_text(context, model, caches)

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        for cache in caches:
            cache.length = int(token.host_position) + 1
        logits: Tensor = model(token.ids, token.position, caches)[:, 0]
        return logits

    return Side(step, model)


def static_caches(context: Context, batch: int, precision: torch.dtype | None = None) -> list[StaticCache]:
    size, precision = shape(context), precision or dtype(context)
    return [StaticCache(size, batch, CONTEXT_TOKENS, precision, context.device) for _ in range(size.layers)]


@torch.inference_mode()
def read_text(context: Context, model: Decoder, caches: Sequence[Cache]) -> None:
    ids = text(context, context.items)[:, :MIDDLE].to(context.device)
    model(ids, torch.arange(MIDDLE, device=context.device), caches, last_only=True)


def compile_once(work: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], Graphs]:
    """`work` by torch.compile, for one form of its arguments, and the list of the graphs that get compiled."""
    from torch._inductor.compile_fx import compile_fx

    graphs: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, examples: Sequence[Tensor]) -> Any:
        graphs.append(graph)
        return compile_fx(graph, examples)

    def run(*arguments: Any) -> Tensor:
        return work(*arguments)

    # Dynamo keeps compiled code with the code object, and gives up after 8: every build needs a code object of its own.
    run.__code__ = run.__code__.replace()
    return torch.compile(run, backend=backend, dynamic=False, fullgraph=True), graphs


def compile_blocks(model: Decoder) -> Graphs:
    model.run_block, graphs = compile_once(model.run_block)
    return graphs


def not_one_graph(graphs: Graphs) -> str | None:
    return None if len(graphs) == 1 else f"{len(graphs)} graphs were compiled, not 1: the step ran eagerly or again"


def graphed(
    context: Context, model: Decoder, caches: Sequence[StaticCache], weights: torch.dtype | None = None
) -> Side:  # cuda only
    """The step with compiled layers as a CUDA graph, which reads its token from memory of its own."""
    graphs = compile_blocks(model)
    ids = torch.zeros(context.items, 1, dtype=torch.int64, device=context.device)
    position = torch.zeros(1, dtype=torch.int64, device=context.device)

    @torch.inference_mode()
    def compute() -> Tensor:
        logits: Tensor = model(ids, position, caches)[:, 0]
        return logits

    replay = compute
    if context.capture_graphs:
        graph, logits = recorded(compute, torch.cuda.Stream(context.device))  # type: ignore[no-untyped-call]

        def replay() -> Tensor:
            graph.replay()
            return logits

    def step(token: Token) -> Tensor:
        ids.copy_(token.ids, non_blocking=True)
        position.copy_(token.position, non_blocking=True)
        return replay()

    def engaged() -> str | None:
        return not_one_graph(graphs) or (None if weights is None else not_quantized(model, weights))

    return Side(step, None if weights else model, engaged=engaged)

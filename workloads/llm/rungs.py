"""The rungs of decoding: each changes how one token is computed, and none changes its logits beyond rounding.

`context.items` is the batch. A side reads the text in one pass while it is built; a step computes the token after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from gpugate.errors import DisprovedError
from gpugate.workload import Build, Context, Side
from workloads.llm.caches import GrowingCache, PromptByHand, StaticCache
from workloads.llm.checkpoint import decoder
from workloads.llm.model import CONTEXT_TOKENS, MIDDLE, Cache, Decoder, Token, draw_ids, dtype, shape, text, token_at
from workloads.llm.quantized import describe_wide_weights, quantize
from workloads.parts.compiled import compile_anew
from workloads.parts.graph_capture import recorded

Graphs = Sequence[fx.GraphModule]
POSITIONS = range(MIDDLE, MIDDLE + 16)  # that the proof compares
SEQUENCES = 16


def growing(context: Context) -> Side:
    """Every token makes all caches one token longer, by torch.cat."""
    model = decoder(context)
    caches = [GrowingCache(shape(context), context.items, dtype(context), context.device) for _ in model.layers]
    read_text(model, caches, text(context, context.items))

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        for cache in caches:
            cache.length = int(token.host_position)
        logits: Tensor = model(token.ids, token.position, caches)[:, 0]
        return logits

    return Side(step, model)


def static(context: Context) -> Side:
    """The caches have memory for the whole context, and attention is one fused kernel."""
    model, caches = decoder(context), make_static_caches(context, context.items)
    read_text(model, caches, text(context, context.items))

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        logits: Tensor = model(token.ids, token.position, caches)[:, 0]
        return logits

    return Side(step, model)


def compiled(context: Context) -> Side:
    """torch.compile of a layer, once for all layers: loops between the matrix products in place of small kernels."""
    model, caches = decoder(context), make_static_caches(context, context.items)
    read_text(model, caches, text(context, context.items))
    graphs = compile_blocks(model)

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        logits: Tensor = model(token.ids, token.position, caches)[:, 0]
        return logits

    return Side(step, model, engaged=partial(describe_graph_problem, graphs))


def whole_step(context: Context) -> Side:
    """One launch a token: a CUDA graph; on a CPU, all layers are compiled together."""
    model, caches = decoder(context), make_static_caches(context, context.items)
    read_text(model, caches, text(context, context.items))
    if context.device.type == "cuda":
        return capture_step(context, model, caches)  # cuda only
    run, graphs = compile_once(lambda ids, position: model(ids, position, caches))

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        logits: Tensor = run(token.ids, token.position)[:, 0]
        return logits

    return Side(step, model, engaged=partial(describe_graph_problem, graphs))


def in_triton(context: Context, narrow: torch.dtype | None = None) -> Side:  # cuda only
    """Five kernels a layer, which read bf16, int8 or fp8 weights at the rate of the memory."""
    from workloads.llm import gemv  # which needs Triton

    return gemv.in_triton(context, narrow)


def int8(context: Context) -> Side:
    """Weights in int8 with a scale for each row, without a compiler."""
    model, caches = decoder(context), make_static_caches(context, context.items)
    quantize(model)
    read_text(model, caches, text(context, context.items))

    @torch.inference_mode()
    def step(token: Token) -> Tensor:
        logits: Tensor = model(token.ids, token.position, caches)[:, 0]
        return logits

    return Side(step, engaged=partial(describe_wide_weights, model))


def make_static_caches(context: Context, batch: int, precision: torch.dtype | None = None) -> list[StaticCache]:
    size, precision = shape(context), precision or dtype(context)
    return [StaticCache(size, batch, CONTEXT_TOKENS, precision, context.device) for _ in range(size.layers)]


@torch.inference_mode()
def read_text(model: Decoder, caches: Sequence[Cache], ids: Tensor) -> None:
    """Fills the caches with the tokens before MIDDLE of the text `ids`."""
    model(ids[:, :MIDDLE], torch.arange(MIDDLE, device=ids.device), caches, last_only=True)


def compile_once(work: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], Graphs]:
    """Compiles `work` for one set of argument shapes; returns the compiled function and the list of compiled graphs.

    On a GPU, coordinate descent tuning makes a product with one row a loop of the compiler.
    """
    from torch._inductor.compile_fx import compile_fx

    graphs: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, examples: Sequence[Tensor]) -> Any:
        graphs.append(graph)
        return compile_fx(graph, examples, config_patches={"coordinate_descent_tuning": examples[0].is_cuda})

    def run(*arguments: Any) -> Tensor:
        return work(*arguments)

    return compile_anew(run, backend=backend, dynamic=False, fullgraph=True), graphs


def compile_blocks(model: Decoder) -> Graphs:
    model.run_block, graphs = compile_once(model.run_block)
    return graphs


def describe_graph_problem(graphs: Graphs) -> str | None:
    return None if len(graphs) == 1 else f"{len(graphs)} graphs were compiled, not 1: the step ran eagerly or again"


def capture_step(
    context: Context,
    model: Decoder,
    caches: Sequence[StaticCache],
) -> Side:
    """The whole step as a CUDA graph that reads its token from memory of its own.

    A layer is compiled once for all layers, and the product with the table apart.
    """
    layers = compile_blocks(model)
    model.lm_head.forward, table = compile_once(model.lm_head.forward)  # type: ignore[method-assign]
    ids = torch.zeros(context.items, 1, dtype=torch.int64, device=context.device)
    position = torch.full((1,), MIDDLE, device=context.device)  # the warm-up of a capture writes where every step does

    @torch.inference_mode()
    def compute() -> Tensor:
        logits: Tensor = model(ids, position, caches)[:, 0]
        return logits

    replay = capture(context, compute)

    def step(token: Token) -> Tensor:
        ids.copy_(token.ids, non_blocking=True)
        position.copy_(token.position, non_blocking=True)
        return replay()

    return Side(step, engaged=lambda: describe_graph_problem(layers) or describe_graph_problem(table))


def capture(context: Context, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Captures `compute` as a CUDA graph and returns its replay; returns `compute` where no graph is to be captured."""
    if not context.capture_graphs:
        return compute
    graph, result = recorded(compute, torch.cuda.Stream(context.device))  # type: ignore[no-untyped-call]
    return partial(_replay, graph, result, compute)


def capture_on_ids(
    context: Context, run: Callable[[Tensor], Tensor], rows: int, columns: int
) -> Callable[[Tensor], Tensor]:
    """Captures `run` on ids int64 [rows, columns] in memory of its own, to which the returned step copies its ids."""
    captured_ids = torch.zeros(rows, columns, dtype=torch.int64, device=context.device)
    replay = capture(context, lambda: run(captured_ids))

    def step(ids: Tensor) -> Tensor:
        captured_ids.copy_(ids, non_blocking=True)
        return replay()

    return step


def _replay(graph: torch.cuda.CUDAGraph, result: Tensor, _captured: Callable[[], Tensor]) -> Tensor:
    """Replays a graph, which reads the addresses of a model and its caches: `_captured` keeps their memory alive."""
    graph.replay()
    return result


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

    if context.device.type == "cuda":
        # Launches would bound the passes, and make a batch of 16 always 16 times as fast.
        return Side(capture_on_ids(context, step, SEQUENCES, 1))  # cuda only
    return Side(step, model)


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
def whole_text_logits(context: Context, ids: Tensor) -> Tensor:
    """float32 [batch, tokens, vocabulary] for ids [batch, tokens], without any cache."""
    model = decoder(context, dtype=torch.float32)
    positions = torch.arange(ids.shape[1], device=context.device)
    logits: Tensor = model(ids, positions, [PromptByHand()] * len(model.layers))
    return logits

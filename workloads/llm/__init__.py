"""Decoding and prefilling of a large language model: its ladder, speculative decoding, prompts, and a sweep of batches.

One token reads every weight once. Memory bandwidth bounds decoding; where kernel launches take longer than the reads,
launches bound it. Weights are random and seeded. On a GPU the model has 1.24 B weights in bf16, on a CPU 21 M in
float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from gpugate.workload import (
    BASELINE,
    TOLERANCE_BY_DTYPE,
    Build,
    Context,
    Contract,
    Limit,
    Needs,
    Optimization,
    Point,
    Proof,
    Side,
    Size,
    Tolerance,
    Workload,
)
from workloads.llm import long_context, prefill, rungs, speculative
from workloads.llm.context import CHECKPOINT_SETTING, LLAMA_1B, MIDDLE, SMALL, token
from workloads.llm.model import Shape
from workloads.parts.compiled import COMPILER
from workloads.parts.quantized import FP8, INT8


def decoding_size(shape: Shape, bytes_per_value: int, batch: int, tokens: int = 1, cached: int = MIDDLE) -> Size:
    """A step computes `tokens` tokens of each of `batch` sequences, and must read the weights once.

    FLOPs: 2 per weight and token, and attention over the prompt and half of the new tokens. Bytes: all weights, and the
    keys and values of each sequence.
    """
    flops = 2.0 * shape.weights + shape.attention_flops(cached)
    return Size(
        batch * tokens, flops=flops * batch * tokens, bytes=bytes_of_step(shape, bytes_per_value, batch, cached=cached)
    )


def bytes_of_step(shape: Shape, bytes_per_value: int, batch: int, narrow: int = 0, cached: int = MIDDLE) -> float:
    """All weights, of which `narrow` have one byte, and the keys and values of `batch` sequences."""
    values = shape.weights + batch * shape.cached_values(cached)
    return float(bytes_per_value * (values - narrow) + narrow)


def prompt_size(shape: Shape, bytes_per_value: int, tokens: int) -> Size:
    """FLOPs: 2 per weight and token, and attention over half of the tokens; the last token alone gets logits."""
    table = shape.vocabulary * shape.width
    flops = 2.0 * (tokens * (shape.weights - table) + table) + tokens * shape.attention_flops(tokens // 2)
    return Size(tokens, flops=flops, bytes=float(bytes_per_value * shape.weights))


LARGE_BATCH, LONG_TEXTS = 16, 8
PROMPT_ON_GPU, PROMPT_ON_CPU = 2048, 256
AMPERE, ADA = Needs(compute_capability=(8, 0)), Needs(compute_capability=(8, 9))
TRITON, TRITON_ON_ADA = (
    Needs(("triton",), capability, install="pip install triton") for capability in ((8, 0), (8, 9))
)
TOLERANCE: Mapping[str, Tolerance] = {
    "float32": TOLERANCE_BY_DTYPE["float32"],
    "bfloat16": Tolerance(relative_l2=3e-2, max_error=1e-1),
    "int8": Tolerance(relative_l2=5e-2, max_error=1.5e-1),
    "fp8": Tolerance(relative_l2=1.5e-1, max_error=3e-1),
}
ROUNDING = 1e-4  # the largest relative L2 difference in FP32 between a cache and the whole text at once
SAME_TOKENS = {"float32": Tolerance(relative_l2=0, max_error=0)}
NO_WAIT = Limit("synchronizing_calls", at_most=0)
ONE_GRAPH = (Limit("graph_launches", at_least=1, at_most=1), Limit("kernel_launches", at_most=2))
# Five kernels a layer, and few beside them: a product by a library would widen int8 and fp8 weights in memory first.
OWN_KERNELS = (Limit("tensor_core_kernels", at_most=0), Limit("kernels", at_most=5 * LLAMA_1B.layers + 10))
HALF_OF_THE_ROOM = Limit("peak_bytes", at_most_of_reference=0.85)
WAITS_FOR_HOST = "the compiled side waits for the host, on which its time differs by two"
OVER_SINGLE_SEQUENCES = (
    f"the reference decodes {rungs.SEQUENCES} sequences one by one and reads all weights {rungs.SEQUENCES} times: "
    "a server would not"
)


def _rung(
    name: str,
    build: Build,
    promises: Mapping[str, float],
    below: str,
    *engaged: Limit,
    share: float | None = None,
    proved: bool = False,
    **more: Any,
) -> Optimization:
    """`share` is the least share of the rate of a copy within the device's memory.

    `proved`: a proof compares the logits with those of the whole text in FP32. Each compiled rung is compared with
    another one in every step.
    """
    limits = (NO_WAIT,) if share is None else (NO_WAIT, Limit("copy_share", at_least=share))
    contract = {"cuda": Contract(engaged, limits)}
    words = {"dtype": "bfloat16", "needs": AMPERE, "contract": contract, "tolerance": TOLERANCE, **more}
    if proved:
        largest = ROUNDING if words["dtype"] == "float32" else TOLERANCE[words["dtype"]].relative_l2
        words["proofs"] = (Proof("agrees-with-fp32", partial(rungs.compare_with_fp32, build, largest)),)
    return Optimization(name, build, promises, compared_with=below, **words)


_on_cpu = partial(_rung, dtype="float32", needs=Needs())
_in_triton = partial(_rung, needs=TRITON, proved=True)


def build_in_triton(context: Context, narrow: torch.dtype | None = None) -> Side:  # cuda only
    """Five kernels a layer, which read bf16, int8 or fp8 weights at the rate of the memory."""
    from workloads.llm import gemv  # which needs Triton

    return gemv.in_triton(context, narrow)


def _on_gpu(compiled: Mapping[str, float], graph: Mapping[str, float]) -> tuple[Optimization, ...]:
    """The rungs of any batch."""
    waits = WAITS_FOR_HOST
    return (
        _rung("static", rungs.static, {"cuda": 1.0}, BASELINE, proved=True),
        _rung("compiled", rungs.compiled, compiled, "static"),
        _rung("cuda-graph", rungs.whole_step, graph, "compiled", *ONE_GRAPH, min_speedup_why=waits),
    )


# Without them for a larger batch: 16 rows are a product of matrices, for tensor cores.
KERNELS_FOR_ONE_ROW = (
    _in_triton(
        "fused-gemv", build_in_triton, {"sm_90": 1.36, "cuda": 1.14}, "cuda-graph", *ONE_GRAPH, *OWN_KERNELS, share=0.7
    ),
    _in_triton(
        "int8",
        partial(build_in_triton, narrow=INT8),
        {"sm_90": 1.2, "cuda": 1.0},
        "fused-gemv",
        *ONE_GRAPH,
        *OWN_KERNELS,
        dtype="int8",
        share=0.55,
        bytes=bytes_of_step(LLAMA_1B, 2, 1, narrow=LLAMA_1B.weights),
    ),
    _in_triton(
        "fp8",
        partial(build_in_triton, narrow=FP8),
        {"sm_90": 1.14, "cuda": 1.09},
        "fused-gemv",
        *ONE_GRAPH,
        *OWN_KERNELS,
        dtype="fp8",
        needs=TRITON_ON_ADA,
        share=0.55,
        bytes=bytes_of_step(LLAMA_1B, 2, 1, narrow=LLAMA_1B.weights - LLAMA_1B.attention_weights),
    ),
)
ON_CPU = (
    _on_cpu("static", rungs.static, {"cpu": 0.9}, BASELINE, proved=True),
    _on_cpu("compiled", rungs.compiled, {"cpu": 0.95}, "static", needs=COMPILER),
    _on_cpu("whole-step", rungs.whole_step, {"cpu": 0.9}, "compiled", needs=COMPILER),
    _on_cpu(
        *("int8", rungs.int8, {"cpu": 1.5}, "static"),
        dtype="int8",
        proved=True,
        bytes=bytes_of_step(SMALL, 4, 1, narrow=SMALL.weights),
    ),
)
# In bfloat16, another order of the sums over 8,192 tokens moves the logits of 16 layers by 2 %, and one page in the
# place of another one by 15 %.
_long_rung = partial(_rung, tolerance={"bfloat16": Tolerance(relative_l2=6e-2, max_error=1.5e-1)}, share=0.5)
LONG = (
    _long_rung("flash", long_context.flash, {"sm_90": 2.2, "cuda": 1.3}, BASELINE, *ONE_GRAPH),
    _long_rung(
        "paged", long_context.paged, {"sm_90": 2.17, "cuda": 1.3}, BASELINE, *ONE_GRAPH, HALF_OF_THE_ROOM, needs=TRITON
    ),
)
SPECULATIVE = Optimization(
    "scripted-draft",
    speculative.speculative,
    {"sm_90": 1.9, "cuda": 1.5, "cpu": 1.2},
    tolerance=SAME_TOKENS,
    why=f"by a script {speculative.ACCEPTANCE:.0%} of the draft's tokens are right: random weights agree on none",
    min_speedup_why="both sides enqueue for longer than their kernels run, and the host decides how long",
)
ATTENTION_BY_HAND = {"sm_90": 2.1, "cuda": 1.4}
SHARES_IN_FP32 = (
    "attention by hand, the reference, writes scores to memory and shares in FP32, which no program needs to do"
)
PROMPT = (
    _rung(
        *("fused-attention", prefill.fused, ATTENTION_BY_HAND, BASELINE),
        why=SHARES_IN_FP32,
        min_speedup_why="the host bounds the fused side, which took 10 ms on one and 15.5 ms on another",
    ),
    _rung(
        *("compiled", prefill.compiled, {"sm_90": 1.2, "cuda": 1.0}, "fused-attention"),
        min_speedup_why="an H100 gains 1.7x, and an H200 1.4x",
    ),
    _rung("fp8", prefill.fp8, {"cuda": 1.0}, "compiled", dtype="fp8", needs=ADA),
)
PROMPT_OF_CPU = (
    _on_cpu("fused-attention", prefill.fused, {"cpu": 0.9}, BASELINE),
    _on_cpu("compiled", prefill.compiled, {"cpu": 0.9}, "fused-attention", needs=COMPILER),
)
# The least speedup of each batch over passes of one sequence.
BATCHES = {
    2: {"sm_90": 1.6, "cuda": 1.6},
    4: {"sm_90": 3.15, "cuda": 3.0},
    8: {"sm_90": 6.2, "cuda": 6.0},
    16: {"sm_90": 12.0, "cuda": 11.0},
}
BATCHES_ON_CPU = {2: {"cpu": 1.0}, 4: {"cpu": 1.3}, 8: {"cpu": 2.0}, 16: {"cpu": 3.0}}


def _sweep(make: Any, promises: Mapping[int, Mapping[str, float]]) -> tuple[Optimization, ...]:
    def point(batch: int, promise: Mapping[str, float]) -> Optimization:
        build, at = partial(rungs.in_batches, batch=batch), Point("batch-size", batch)
        rung: Optimization = make(f"batch-{batch}", build, promise, BASELINE, point=at, why=OVER_SINGLE_SEQUENCES)
        return rung

    return tuple(point(*each) for each in promises.items())


_workload = partial(Workload, cold=False, settings=CHECKPOINT_SETTING)
_decoding = partial(_workload, baseline=rungs.growing, inputs=token, ladder=True)
_long = partial(_workload, baseline=long_context.with_room, inputs=long_context.tokens)
_prompt = partial(_workload, baseline=prefill.by_hand, inputs=prefill.prompt, ladder=True)
_batches = partial(_workload, baseline=partial(rungs.in_batches, batch=1), inputs=rungs.batch_of_tokens)


WORKLOADS: tuple[Workload, ...] = (
    _decoding(
        name="llm-decode",
        sizes={"cuda": decoding_size(LLAMA_1B, 2, 1)},
        optimizations=(
            *_on_gpu({"sm_90": 1.77, "cuda": 1.2}, {"sm_90": 3.5, "cuda": 2.0}),
            *KERNELS_FOR_ONE_ROW,
        ),
    ),
    _decoding(
        name="llm-decode-batch16",
        sizes={"cuda": decoding_size(LLAMA_1B, 2, LARGE_BATCH)},
        optimizations=_on_gpu({"sm_90": 1.28, "cuda": 1.2}, {"sm_90": 3.3, "cuda": 2.0}),
    ),
    _decoding(name="llm-decode-small", sizes={"cpu": decoding_size(SMALL, 4, 1)}, optimizations=ON_CPU),
    _long(
        name="llm-decode-8k",
        sizes={"cuda": decoding_size(LLAMA_1B, 2, LONG_TEXTS, cached=long_context.TOKENS["cuda"])},
        optimizations=LONG,
    ),
    _long(
        name="llm-decode-1k-small",
        sizes={"cpu": decoding_size(SMALL, 4, LONG_TEXTS, cached=long_context.TOKENS["cpu"])},
        optimizations=(_on_cpu("flash", long_context.flash, {"cpu": 0.9}, BASELINE),),
    ),
    _workload(
        name="llm-speculative",
        baseline=speculative.one_by_one,
        inputs=speculative.span,
        sizes={
            "cuda": decoding_size(LLAMA_1B, 4, 1, speculative.SPAN_TOKENS),
            "cpu": decoding_size(SMALL, 4, 1, speculative.SPAN_TOKENS),
        },
        optimizations=(SPECULATIVE,),
        timing="pipeline",  # the host waits for the number of accepted tokens
    ),
    _prompt(name="llm-prefill", sizes={"cuda": prompt_size(LLAMA_1B, 2, PROMPT_ON_GPU)}, optimizations=PROMPT),
    _prompt(name="llm-prefill-small", sizes={"cpu": prompt_size(SMALL, 4, PROMPT_ON_CPU)}, optimizations=PROMPT_OF_CPU),
    _batches(
        name="llm-batch",
        sizes={"cuda": decoding_size(LLAMA_1B, 2, rungs.SEQUENCES)},
        optimizations=_sweep(_rung, BATCHES),
    ),
    _batches(
        name="llm-batch-small",
        sizes={"cpu": decoding_size(SMALL, 4, rungs.SEQUENCES)},
        optimizations=_sweep(_on_cpu, BATCHES_ON_CPU),
    ),
)

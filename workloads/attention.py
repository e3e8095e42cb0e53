"""Attention with a structure: a sliding window, and packed documents.

A program that states the structure as a dense mask, which PyTorch's fused attention reads, computes and masks every
pair of tokens: that is the reference. Without a mask, the same call knows no structure but causality. FlexAttention
compiles the rule into the kernel and skips the blocks without a pair (Dong et al., Flex Attention, 2024). Attention of
variable lengths takes the ends of the documents.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from gpugate.workload import Build, Context, Contract, Limit, Needs, Optimization, Side, Size, Workload
from workloads.parts.compiled import COMPILER, compile_anew
from workloads.parts.random_inputs import draw

HEADS, HEAD = {"cuda": 16, "cpu": 4}, {"cuda": 128, "cpu": 32}
DTYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}
BLOCK = 128  # tokens of a block of FlexAttention
WINDOW = {"cuda": 1024, "cpu": 128}
DOCUMENT_SHARES = (1, 7, 2, 5, 3, 6, 4, 4)  # of the 32 parts of the packed tokens
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def heads(context: Context, index: int) -> Tensor:
    """Queries, keys and values: [3, 1, heads, tokens, head]."""
    kind = context.device.type
    return draw(context, index, 3, 1, HEADS[kind], context.items, HEAD[kind]).to(DTYPE[kind])


def window(context: Context) -> Rule:
    """A token attends to itself and to those before it in its window."""
    width = WINDOW[context.device.type]
    return lambda text, head, query, key: (key <= query) & (query - key < width)


def document_ends(context: Context) -> Tensor:
    """Where each document ends, from 0 on: int32 [documents + 1]."""
    lengths = torch.tensor([0, *(context.items * share // sum(DOCUMENT_SHARES) for share in DOCUMENT_SHARES)])
    return lengths.cumsum(0).to(context.device, torch.int32)


def documents(context: Context) -> Rule:
    """A token attends to itself and to those before it in its document."""
    places = torch.arange(context.items, device=context.device, dtype=torch.int32)
    number = torch.bucketize(places, document_ends(context)[1:], right=True)
    return lambda text, head, query, key: (key <= query) & (number[query] == number[key])


def _side(attend: Attend) -> Side:
    return Side(torch.no_grad()(lambda inputs: attend(*inputs)))


def dense_mask(context: Context, rule: Callable[[Context], Rule]) -> Side:
    """The rule as a mask of all pairs, [tokens, tokens], which PyTorch's attention reads for each head."""
    places = torch.arange(context.items, device=context.device)
    none = places[:1]
    mask = rule(context)(none, none, places[:, None], places[None, :])
    return _side(lambda queries, keys, values: F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask))


def flex(context: Context, rule: Callable[[Context], Rule]) -> Side:
    """The rule is compiled into the kernel, and blocks without a pair are skipped."""
    tokens = context.items
    blocks = create_block_mask(rule(context), None, None, tokens, tokens, device=str(context.device), BLOCK_SIZE=BLOCK)
    run = compile_anew(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks), dynamic=False, fullgraph=True)
    return _side(run)


def variable_lengths(context: Context) -> Side:
    """FlashAttention over the documents, each with its own length."""
    from torch.nn.attention.varlen import varlen_attn

    ends = document_ends(context)
    longest = int(ends.diff().max())

    def attend(*heads: Tensor) -> Tensor:
        rows = [each[0].transpose(0, 1).contiguous() for each in heads]  # [tokens, heads, head]
        attended: Tensor = varlen_attn(rows[0], rows[1], rows[2], ends, ends, longest, longest, window_size=(-1, 0))  # type: ignore[assignment]
        return attended.transpose(0, 1)[None]

    return _side(attend)


def pairs_size(kind: str, tokens: int, pairs: float) -> Size:
    """FLOPs: two products of 2 per multiply-add over the pairs. Bytes: queries, keys, values and the result once."""
    width, value = HEADS[kind] * HEAD[kind], DTYPE[kind].itemsize
    return Size(items=tokens, flops=4.0 * pairs * width, bytes=4.0 * tokens * width * value)


def window_size(kind: str, tokens: int) -> Size:
    width = WINDOW[kind]
    return pairs_size(kind, tokens, tokens * width - width * (width - 1) / 2)


def documents_size(kind: str, tokens: int) -> Size:
    lengths = [tokens * share / sum(DOCUMENT_SHARES) for share in DOCUMENT_SHARES]
    return pairs_size(kind, tokens, sum(length * (length + 1) / 2 for length in lengths))


AMPERE = Needs(compute_capability=(8, 0))
EIGHTH = "of a causal window, an eighth of the pairs is left"


def _limit(kernels: int, peak_share: float, matmul_share: float) -> Contract:
    """Little memory shows that no mask of all pairs is made; the share of the matmul rate is below that of an H200."""
    memory = Limit("peak_bytes", at_most_of_reference=peak_share)
    return Contract(limits=(Limit("kernels", at_most=kernels), memory, Limit("matmul_share", at_least=matmul_share)))


BY_FLEX, BY_LENGTHS = _limit(1, 0.1, 0.3), _limit(5, 0.4, 0.2)  # 0.08 and 0.31 of the memory, 0.38 and 0.24 of the rate


def _rung(name: str, build: Build, promises: dict[str, float], needs: Needs, why: str = "") -> Optimization:
    contract = {"cuda": BY_FLEX if name == "flex" else BY_LENGTHS}
    return Optimization(name, build, promises, dtype="bfloat16", needs=needs, contract=contract, why=why)


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "attention-window",
        partial(dense_mask, rule=window),
        heads,
        {"cuda": window_size("cuda", 16_384), "cpu": window_size("cpu", 1024)},
        (_rung("flex", partial(flex, rule=window), {"sm_90": 13.7, "cuda": 4.0, "cpu": 1.0}, COMPILER, EIGHTH),),
        cold=False,
    ),
    Workload(
        "attention-documents",
        partial(dense_mask, rule=documents),
        heads,
        {"cuda": documents_size("cuda", 16_384), "cpu": documents_size("cpu", 1024)},
        (
            _rung("flex", partial(flex, rule=documents), {"sm_90": 11.6, "cuda": 4.0, "cpu": 1.0}, COMPILER),
            _rung("variable-lengths", variable_lengths, {"sm_90": 7.0, "cuda": 4.0}, AMPERE),
        ),
        cold=False,
    ),
)

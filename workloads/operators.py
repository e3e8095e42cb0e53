"""Operators of a transformer, each by hand and fused by PyTorch or by its compiler: fewer passes over memory.

By hand each kernel writes its result to memory, where the next one reads it. A fused kernel keeps it in registers.
The sizes are for a CPU: a GPU's ladder of fused kernels is `resnet50-inference`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpugate.workload import Build, Context, MakeInput, Needs, Optimization, Side, Size, Workload
from workloads.parts.compiled import COMPILER, compile_anew
from workloads.parts.random_inputs import host_generator

HEADS, TOKENS, HEAD = 8, 512, 64
FEATURES, CLASSES = 1024, 8192
VECTORS, VECTOR, IDS_PER_BAG = 200_000, 64, 32
NOTHING = Needs()
BY_HAND = (
    "the reference is the operator by hand: each of its kernels writes its result to memory, as no program needs to"
)


def heads(context: Context, index: int) -> Tensor:
    """Queries, keys and values: [3, sequences, heads, tokens, head]."""
    return torch.randn(3, context.items, HEADS, TOKENS, HEAD, generator=host_generator(context, index))


def attention_by_hand(inputs: Tensor) -> Tensor:
    """Causal attention that writes the scores of all pairs of tokens to memory, three times."""
    queries, keys, values = inputs
    scores = queries @ keys.transpose(-1, -2) / HEAD**0.5
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    shares: Tensor = torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1)
    attended: Tensor = shares @ values
    return attended


def attention_fused(inputs: Tensor) -> Tensor:
    """Attention over blocks of scores that stay in the cache (Dao et al., FlashAttention, 2022)."""
    queries, keys, values = inputs
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def rows(context: Context, index: int) -> Tensor:
    """[rows, features]."""
    return torch.randn(context.items, FEATURES, generator=host_generator(context, index))


def layer_norm_by_hand(x: Tensor) -> Tensor:
    """Six passes over the rows."""
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-5)


def layer_norm_fused(x: Tensor) -> Tensor:
    return F.layer_norm(x, (FEATURES,), eps=1e-5)


def activation(x: Tensor) -> Tensor:
    """A hard swish, a residual and a hard gate (Howard et al., MobileNetV3, 2019): nine passes over the rows by hand.

    Additions and products leave memory as the bound. tanh and sigmoid would bound both sides on a CPU with AVX2 alone.
    """
    y = x + x * F.relu6(x + 3) / 6
    return y * F.hardtanh(y * 0.5 + 0.5, 0, 1)


def activation_compiled(context: Context) -> Side:
    """One loop over the rows, made by torch.compile."""
    return _side(compile_anew(activation, dynamic=False, fullgraph=True), context)


def labelled_rows(context: Context, index: int) -> tuple[Tensor, Tensor]:
    """Scores [rows, classes], and the right class of each row."""
    random = host_generator(context, index)
    scores = torch.randn(context.items, CLASSES, generator=random)
    return scores, torch.randint(CLASSES, (context.items,), generator=random)


def cross_entropy_by_hand(inputs: tuple[Tensor, Tensor]) -> Tensor:
    """The whole softmax in four passes over the rows, of which one class a row is needed."""
    scores, classes = inputs
    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    shares = powers / powers.sum(dim=-1, keepdim=True)
    return -shares.gather(1, classes[:, None]).log()


def cross_entropy_fused(inputs: tuple[Tensor, Tensor]) -> Tensor:
    scores, classes = inputs
    return F.cross_entropy(scores, classes, reduction="none")[:, None]


def bags(context: Context, index: int) -> Tensor:
    """Ids of the vectors in each bag: int64 [bags, ids]."""
    return torch.randint(VECTORS, (context.items, IDS_PER_BAG), generator=host_generator(context, index))


def _vectors(context: Context) -> Tensor:
    return torch.randn(VECTORS, VECTOR, generator=host_generator(context, -1))


def bag_by_hand(context: Context) -> Side:
    """Copies the vectors of all bags next to each other, then sums them."""
    vectors = _vectors(context)
    return _side(lambda ids: vectors[ids].sum(dim=1), context)


def bag_fused(context: Context) -> Side:
    """Adds each vector to the sum of its bag."""
    vectors = _vectors(context)
    return _side(lambda ids: F.embedding_bag(ids, vectors, mode="sum"), context)


def _attention_size(sequences: int) -> Size:
    """FLOPs: 2 per multiply-add of two products over all pairs of tokens. Bytes: queries, keys, values and result."""
    values = sequences * HEADS * TOKENS * HEAD
    return Size(items=sequences, flops=4.0 * values * TOKENS, bytes=4.0 * 4 * values)


def _rows_size(count: int, features: int = FEATURES, written: int = FEATURES) -> Size:
    """FLOPs: 8 per value. Bytes: the rows read and written once."""
    return Size(items=count, flops=8.0 * count * features, bytes=4.0 * count * (features + written))


def _bags_size(bags: int) -> Size:
    """FLOPs: an addition per value. Bytes: ids and vectors read once, sums written once."""
    values = bags * IDS_PER_BAG * VECTOR
    return Size(items=bags, flops=values, bytes=4.0 * values + 8.0 * bags * IDS_PER_BAG + 4.0 * bags * VECTOR)


def _side(step: Callable[[Any], Tensor], context: Context) -> Side:
    return Side(torch.inference_mode()(step))


def _of(step: Callable[[Any], Tensor]) -> Build:
    return partial(_side, step)


def _workload(
    name: str, baseline: Build, fused: Build, inputs: MakeInput, size: Size, promise: float, needs: Needs = NOTHING
) -> Workload:
    optimization = Optimization("fused", fused, {"cpu": promise}, needs=needs, why=BY_HAND)
    return Workload(f"operator-{name}", baseline, inputs, {"cpu": size}, (optimization,), cold=False)


# 34 MB of rows for the norm: 2,048 rows fit in the cache of some CPUs, which left 1.1x.
# The scores that attention by hand writes took 6 to 18 ms, by where in memory they lay: 1.4x to 3.6x on one CPU.
WORKLOADS: tuple[Workload, ...] = (
    _workload("activation", _of(activation), activation_compiled, rows, _rows_size(2048), promise=1.5, needs=COMPILER),
    _workload("attention", _of(attention_by_hand), _of(attention_fused), heads, _attention_size(1), promise=1.2),
    _workload("layer-norm", _of(layer_norm_by_hand), _of(layer_norm_fused), rows, _rows_size(8192), promise=1.8),
    _workload(
        *("cross-entropy", _of(cross_entropy_by_hand), _of(cross_entropy_fused), labelled_rows),
        size=_rows_size(512, CLASSES, written=1),
        promise=1.5,
    ),
    _workload("embedding-bag", bag_by_hand, bag_fused, bags, _bags_size(2048), promise=1.2),
)

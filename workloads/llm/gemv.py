"""A token in Triton: five kernels a layer, each of which reads its weights once at the rate of the memory.

A product with one row of activations is a matrix times a vector. No tensor core helps: the number of bytes on their way
decides. A program multiplies a few rows of weights, which it widens in registers. It also computes the norm before them
and the addition after them, so that the GPU has few kernels to start and to drain. From Hopper on, a kernel starts
while the one before it drains, and reads its first weights before it waits for that one's result (CUDA C++ Programming
Guide, "Programmatic Dependent Launch").
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, cast

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from gpugate.workload import Context, Side
from workloads.llm.context import decoder, text
from workloads.llm.model import Block, Decoder, StaticCache
from workloads.llm.rungs import capture_on_token, make_static_caches, read_text
from workloads.parts.quantized import FP8, INT8, round_rows

WARPS, VALUES = 4, 2048  # of a program: its warps, and the values of a row that it reads at once
# Other numbers of warps for a row of bytes, measured on an H200: the time of a token fell by 4 %.
WARPS_OF_SHORT_ROWS, WARPS_OF_MANY_ROWS = 8, 2
MANY_ROWS, LONG_ROW = 16_384, 4096


# Four bytes v become fp16 numbers 1152 + v by their place in the bits, and then 1152 is subtracted: two instructions a
# pair of values, where an instruction that converts a byte runs at a quarter of the rate.
WIDEN = tl.constexpr("""{
    .reg .b32 bytes, offset;
    xor.b32 bytes, $2, 0x80808080;
    mov.b32 offset, 0x64806480;
    prmt.b32 $0, bytes, 0x64646464, 0x4140;
    prmt.b32 $1, bytes, 0x64646464, 0x4342;
    sub.f16x2 $0, $0, offset;
    sub.f16x2 $1, $1, offset;
}""")


@triton.jit  # type: ignore[untyped-decorator]
def _widen(weights, in_assembly: tl.constexpr):  # type: ignore[no-untyped-def]
    if in_assembly:
        weights = tl.inline_asm_elementwise(WIDEN, "=r,=r,r", [weights], dtype=tl.float16, is_pure=True, pack=4)
    return weights.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _multiply(  # type: ignore[no-untyped-def]
    weight, scale, x, norm, residual, result, rows, second, eps,
    width: tl.constexpr, block_rows: tl.constexpr, block: tl.constexpr,
    normed: tl.constexpr, added: tl.constexpr, gated: tl.constexpr, scaled: tl.constexpr, early: tl.constexpr,
    in_assembly: tl.constexpr,
):  # fmt: skip
    """result = weight norm(x) * scale + residual; gated: the product with the rows from `second` on gates the first."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    inside = row < rows
    products = tl.zeros((block_rows, block), tl.float32)
    others = tl.zeros((block_rows, block), tl.float32)
    squares = tl.zeros((1, block), tl.float32)
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    for start in tl.static_range(0, width, block):
        column = start + tl.arange(0, block)[None, :]
        # A thread has eight neighbours of weights of every type, as it has of the activations.
        at = weight + row[:, None] * width + column
        weights = tl.load(tl.max_contiguous(at, [1, 8]), inside[:, None], 0.0)
        if gated:
            more = tl.load(tl.max_contiguous(at + second * width, [1, 8]), inside[:, None], 0.0)
        if early and start == 0:
            tl.extra.cuda.gdc_wait()  # for the kernels before this one, and all that they wrote
        wide = tl.load(x + column).to(tl.float32)
        if normed:
            squares += wide * wide
            wide = wide * tl.load(norm + column).to(tl.float32)
        products += _widen(weights, in_assembly) * wide
        if gated:
            others += _widen(more, in_assembly) * wide
    norm_scale = tl.rsqrt(tl.sum(squares) / width + eps) if normed else 1.0
    total = tl.sum(products, 1) * norm_scale
    if scaled:
        total *= tl.load(scale + row, inside, 0.0)
    if gated:
        other = tl.sum(others, 1) * norm_scale
        if scaled:
            other *= tl.load(scale + second + row, inside, 0.0)
        total = total * tl.sigmoid(total) * other
    if added:
        total += tl.load(residual + row, inside, 0.0).to(tl.float32)
    tl.store(result + row, total, inside)


@triton.jit  # type: ignore[untyped-decorator]
def _turn(x, cosines, sines, column, head: tl.constexpr):  # type: ignore[no-untyped-def]
    """A head of queries or keys at its position, in the precision in which the cache has it."""
    partner = tl.load(x + (column + head // 2) % head).to(tl.float32)
    turned = tl.load(x + column).to(tl.float32) * cosines + tl.where(column < head // 2, -partner, partner) * sines
    return turned.to(x.dtype.element_ty).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    qkv, keys, values, cosines, sines, positions, result, context,
    heads: tl.constexpr, group: tl.constexpr, head: tl.constexpr, block: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """A program turns one query and its new key, writes key and value to the cache, and attends to all tokens."""
    number, position = tl.program_id(0), tl.load(positions)
    shared, column, token = number // group, tl.arange(0, head), tl.arange(0, block)
    cached = shared * context * head + token[:, None] * head + column[None, :]
    earlier = token < position
    old_keys = tl.load(keys + cached, earlier[:, None], 0.0)
    old_values = tl.load(values + cached, earlier[:, None], 0.0)
    if early:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    cosine = tl.load(cosines + position * head + column).to(tl.float32)
    sine = tl.load(sines + position * head + column).to(tl.float32)
    query = _turn(qkv + number * head, cosine, sine, column, head) * (1 / head**0.5)
    key = _turn(qkv + (heads + shared) * head, cosine, sine, column, head)
    value = tl.load(qkv + (heads + heads // group + shared) * head + column)
    if number % group == 0:
        tl.store(keys + (shared * context + position) * head + column, key)
        tl.store(values + (shared * context + position) * head + column, value)
    scores = tl.where(earlier, tl.sum(old_keys.to(tl.float32) * query[None, :], 1), -float("inf"))
    own = tl.sum(key * query)
    largest = tl.maximum(tl.max(scores), own)
    powers, power = tl.exp(scores - largest), tl.exp(own - largest)
    attended = tl.sum(powers[:, None] * old_values.to(tl.float32), 0) + power * value.to(tl.float32)
    tl.store(result + number * head + column, attended / (tl.sum(powers) + power))


def starts_early(device: torch.device) -> dict[str, bool]:
    """The options of a kernel that may start before the one before it ends: from compute capability 9.0 on."""
    early = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"early": early, **({"launch_pdl": True} if early else {})}


class Matrix(NamedTuple):
    """Weights [rows, width], and float32 [rows, 1] scales where a value has one byte."""

    weight: Tensor
    scale: Tensor | None


class Layer(NamedTuple):
    """The weights of a layer, those that read the same activations in one matrix, and its cache."""

    qkv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix
    norms: tuple[nn.RMSNorm, nn.RMSNorm]
    cache: StaticCache


def pack(linears: list[nn.Linear], narrow: torch.dtype | None) -> Matrix:
    weight = torch.cat([linear.weight for linear in linears])
    return Matrix(weight, None) if narrow is None else Matrix(*round_rows(weight, narrow))


def pack_layers(model: Decoder, caches: list[StaticCache], narrow: torch.dtype | None) -> list[Layer]:
    """In fp8 the matrices of attention stay as they are: the logits would be off by 14 to 16 %, not by 8 %."""
    layers, in_attention = [], None if narrow is FP8 else narrow
    for block, cache in zip(cast(list[Block], model.layers), caches, strict=True):
        own, mlp = block.self_attn, block.mlp
        qkv, output = pack([own.q_proj, own.k_proj, own.v_proj], in_attention), pack([own.o_proj], in_attention)
        gate_up, down = pack([mlp.gate_proj, mlp.up_proj], narrow), pack([mlp.down_proj], narrow)
        layers.append(Layer(qkv, output, gate_up, down, (block.input_layernorm, block.post_attention_layernorm), cache))
    return layers


def multiply(
    matrix: Matrix, x: Tensor, norm: nn.RMSNorm | None = None, residual: Tensor | None = None, gated: bool = False
) -> Tensor:
    """The matrix times x [width]: [rows], or half of them where the first half is the gate of the second."""
    weight, scale = matrix
    rows, width = weight.shape[0] // (2 if gated else 1), weight.shape[1]
    block = min(VALUES, width & -width)  # a power of two that divides the width
    block_rows, warps = 2 if scale is None and rows < MANY_ROWS else 4, WARPS
    if scale is not None and not gated and width <= LONG_ROW:
        warps = WARPS_OF_SHORT_ROWS if rows < MANY_ROWS else WARPS_OF_MANY_ROWS
    result = torch.empty(rows, dtype=x.dtype, device=x.device)
    in_assembly = weight.dtype is INT8 and x.is_cuda  # Triton's interpreter, on a CPU, has no assembly
    _multiply[(triton.cdiv(rows, block_rows),)](
        weight, scale, x, None if norm is None else norm.weight, residual, result, rows, rows,
        0.0 if norm is None else norm.eps, width=width, block_rows=block_rows, block=block, normed=norm is not None,
        added=residual is not None, gated=gated, scaled=scale is not None, num_warps=warps,
        in_assembly=in_assembly, **starts_early(x.device),
    )  # fmt: skip
    return result


def attend(model: Decoder, qkv: Tensor, cache: StaticCache, position: Tensor) -> Tensor:
    """Attention of one token, whose key and value are written to the cache: [width]."""
    _, kv_heads, context, head = cache.keys.shape
    heads = len(qkv) // head - 2 * kv_heads
    result = torch.empty(heads * head, dtype=qkv.dtype, device=qkv.device)
    _attend[(heads,)](
        qkv, cache.keys, cache.values, model.cosines, model.sines, position, result, context, heads=heads,
        group=heads // kv_heads, head=head, block=triton.next_power_of_2(context), num_warps=8,
        **starts_early(qkv.device),
    )  # fmt: skip
    return result


def compute_token(model: Decoder, layers: list[Layer], table: Matrix, ids: Tensor, position: Tensor) -> Tensor:
    """float32 [1, vocabulary]."""
    x = model.embed_tokens(ids).flatten()  # [width]
    for layer in layers:
        qkv = multiply(layer.qkv, x, norm=layer.norms[0])
        x = multiply(layer.output, attend(model, qkv, layer.cache, position), residual=x)
        hidden = multiply(layer.gate_up, x, norm=layer.norms[1], gated=True)
        x = multiply(layer.down, hidden, residual=x)
    return multiply(table, x, norm=model.norm).float()[None]


def in_triton(context: Context, narrow: torch.dtype | None = None) -> Side:
    """One sequence, as a CUDA graph: with weights in bf16, in int8, or in fp8 but for attention."""
    model, caches = decoder(context), make_static_caches(context, 1)
    read_text(model, caches, text(context, 1))
    layers, table = pack_layers(model, caches, narrow), pack([model.lm_head], narrow)
    del model.layers, model.lm_head
    step = capture_on_token(context, partial(compute_token, model, layers, table))
    return Side(step, engaged=partial(describe_types, layers, table, narrow))


def describe_types(layers: list[Layer], table: Matrix, narrow: torch.dtype | None) -> str | None:
    """Says how many matrices kept their type that were to have one byte a value, or None."""
    matrices = [table, *(matrix for layer in layers for matrix in (layer.gate_up, layer.down))]
    if narrow is INT8:
        matrices += [matrix for layer in layers for matrix in (layer.qkv, layer.output)]
    kept = sum(narrow is not None and matrix.weight.dtype is not narrow for matrix in matrices)
    return f"{kept} matrices have weights that are not {narrow}" if kept else None

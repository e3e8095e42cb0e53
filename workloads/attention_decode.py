"""Decoding from a cache in pages: the newest query of each text attends to all tokens of its text.

A server stores keys and values in pages that lie anywhere in memory, so that texts grow without a copy (Kwon et al.,
PagedAttention, 2023). PyTorch's attention wants one piece, which a step gathers from the pages. FlexAttention reads
each page where it lies, because a table of pages is a list of blocks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gpugate.workload import Context, Contract, DeviceKind, Limit, Optimization, Side, Size, Workload
from workloads.attention import DTYPE, HEAD, HEADS
from workloads.parts.compiled import COMPILER, compile_anew
from workloads.parts.random_inputs import draw

PAGE, PART = 128, 8192  # tokens of a page, and of a program of the kernel at most
CACHED = {"cuda": 262_144, "cpu": 4096}  # tokens of all texts, which have equal shares


def queries_and_pages(context: Context, index: int) -> tuple[Tensor, Tensor]:
    """The newest query of each text [texts, heads, 1, head]; keys and values [2, 1, heads, cached tokens, head]."""
    kind = context.device.type
    queries = draw(context, 2 * index, context.items, HEADS[kind], 1, HEAD[kind])
    cache = draw(context, 2 * index + 1, 2, 1, HEADS[kind], CACHED[kind], HEAD[kind])
    return queries.to(DTYPE[kind]), cache.to(DTYPE[kind])


def page_table(context: Context) -> Tensor:
    """The pages of each text, in the order of its tokens: int32 [texts, pages]. They lie anywhere in the cache."""
    random = torch.Generator().manual_seed(context.seed)
    pages = torch.randperm(CACHED[context.device.type] // PAGE, generator=random)
    return pages.view(context.items, -1).to(context.device, torch.int32)


def gathered_pages(context: Context) -> Side:
    """The pages of each text are copied into one piece, which PyTorch's attention reads.

    A page of a head is one row of memory, so that the copy runs at the memory's rate: an index into the dimension of
    pages ran at a fifth of it on an H200.
    """
    kind, table = context.device.type, page_table(context)
    of_head = torch.arange(2 * HEADS[kind], device=context.device) * (CACHED[kind] // PAGE)  # its first row
    rows = (of_head.view(2, 1, -1, 1) + table[:, None]).flatten()  # keys and values, texts, heads, pages

    @torch.no_grad()
    def step(inputs: tuple[Tensor, Tensor]) -> Tensor:
        queries, cache = inputs
        own = cache.view(-1, PAGE * HEAD[kind])[rows].view(2, len(queries), HEADS[kind], -1, HEAD[kind])
        return F.scaled_dot_product_attention(queries, own[0], own[1])

    return Side(step)


def pages_in_place(context: Context) -> Side:
    """FlexAttention reads each page where it lies: the table is the list of a text's blocks, all of them whole."""
    table, cached = page_table(context), CACHED[context.device.type]
    texts, pages = table.shape
    count = torch.full((texts, 1, 1), pages, device=context.device, dtype=torch.int32)
    whole = torch.zeros((texts, 1, 1, cached // PAGE), device=context.device, dtype=torch.int32)
    whole[:, 0, 0, :pages] = table
    none = torch.zeros_like(count), torch.zeros_like(whole)  # no block is masked in part
    owner = torch.empty(cached // PAGE, device=context.device, dtype=torch.int64)
    owner[table.long()] = torch.arange(texts, device=context.device)[:, None]
    blocks = BlockMask.from_kv_blocks(
        *none,
        count,
        whole,
        BLOCK_SIZE=(PAGE, PAGE),
        mask_mod=lambda text, head, query, token: owner[token // PAGE] == text,
        seq_lengths=(1, cached),
    )
    # The kernel divides the whole cache among its programs, not the pages of a text: without more parts, one program
    # would read all pages of a long text.
    options: Any = {"SPLIT_KV": cached // PART} if context.device.type == "cuda" and cached // texts > PART else None

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Any:
        return flex_attention(queries, keys, values, block_mask=blocks, kernel_options=options)

    run = compile_anew(attend, dynamic=False, fullgraph=True)
    return Side(torch.no_grad()(lambda inputs: run(inputs[0], *inputs[1])))


def size(kind: str, texts: int) -> Size:
    """FLOPs: two products of each query with the cached tokens of its text. Bytes: the cache once."""
    values = CACHED[kind] * HEADS[kind] * HEAD[kind]
    return Size(items=texts, flops=4.0 * values, bytes=2.0 * values * DTYPE[kind].itemsize)


NO_COPY = Limit("kernels", at_most=4), Limit("peak_bytes", at_most_of_reference=0.01)  # 0.001 on an H200
COPIED = "the reference reads the cache, writes it and reads it once more; here it is read once"


def _workload(name: str, texts: int, gain: float, copy_share: float) -> Workload:
    optimization = Optimization(
        "pages-in-place",
        pages_in_place,
        {"sm_90": gain, "cuda": 1.5, "cpu": 1.2},
        dtype="bfloat16",
        needs=COMPILER,
        contract={"cuda": Contract(limits=(*NO_COPY, Limit("copy_share", at_least=copy_share)))},
        why=COPIED,
    )
    sizes: dict[DeviceKind, Size] = {"cuda": size("cuda", texts), "cpu": size("cpu", 4)}
    return Workload(name, gathered_pages, queries_and_pages, sizes, (optimization,), cold=False)


# With one program for each head of a text, 8 texts reached 0.40 of a copy's rate on an H200; in parts, they reach 0.94.
WORKLOADS: tuple[Workload, ...] = (
    _workload("attention-decode-8k", 32, 2.53, 0.8),
    _workload("attention-decode-32k", 8, 2.49, 0.75),
)

"""A server of a language model: requests with long prompts and answers of very different lengths share a batch.

A static batch waits for its longest answer. Continuous batching gives the row of a finished request to the next one (Yu
et al., Orca, OSDI 2022), but each new prompt then holds up all others: the longest waits from token to token grow. A
prompt in chunks does not (Agrawal et al., Sarathi-Serve, OSDI 2024). The beginning that all prompts share is computed
once. The tokens of the answers are given, so that rounding leads no side to another text; the server reads the
likeliest ones all the same, since users wait for them.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from gpugate.workload import (
    BASELINE,
    Build,
    Context,
    Contract,
    DeviceKind,
    Limit,
    Optimization,
    Side,
    Size,
    Tolerance,
    Workload,
)
from workloads.llm.model import UNWRITTEN, Shape, make_decoder
from workloads.parts.random_inputs import host_generator

SHAPES = {
    "cuda": Shape(vocabulary=32_000, width=2048, layers=8, heads=32, kv_heads=8, hidden=8192),
    "cpu": Shape(vocabulary=2048, width=256, layers=2, heads=8, kv_heads=2, hidden=704),
}
DTYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}
REQUESTS, ROWS = {"cuda": 32, "cpu": 12}, {"cuda": 8, "cpu": 4}
SHARED, OWN, CHUNK = {"cuda": 1536, "cpu": 96}, {"cuda": 512, "cpu": 32}, {"cuda": 256, "cpu": 32}  # tokens of a prompt
LONGEST = {"cuda": 128, "cpu": 32}  # tokens of an answer


def answers(kind: str) -> list[int]:
    """The tokens of each answer: a few are long, and the average one has a quarter of them."""
    return [max(2, round(LONGEST[kind] * (number * 0.618 % 1) ** 3)) for number in range(1, REQUESTS[kind] + 1)]


def texts(context: Context, index: int) -> Tensor:
    """A prompt with its answer for each request: int64 [requests, tokens], on the host."""
    kind, random = context.device.type, host_generator(context, index)
    size = REQUESTS[kind], OWN[kind] + LONGEST[kind]
    own = torch.randint(SHAPES[kind].vocabulary, size, generator=random)
    return torch.cat((shared_prompt(context).expand(size[0], -1), own), dim=1)


def shared_prompt(context: Context) -> Tensor:
    """The beginning of all prompts: int64 [tokens], on the host."""
    kind = context.device.type
    random = torch.Generator().manual_seed(context.seed)
    return torch.randint(SHAPES[kind].vocabulary, (SHARED[kind],), generator=random)


class RowCache:
    """The keys and values of one layer: each row of the batch has a text of its own length.

    `rows` and `end` are set before each pass: the rows that it reads, and the number of tokens before which all are.
    """

    def __init__(self, shape: Shape, rows: int, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        size = (rows, shape.kv_heads, tokens, shape.head)
        self.keys, self.values = (torch.full(size, UNWRITTEN, dtype=dtype, device=device) for _ in range(2))
        self.tokens = torch.arange(tokens, device=device)
        self.rows, self.end = slice(rows), 0

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        """Positions are int64 [new] for a part of a prompt, and [rows, 1, 1] for one token of each row."""
        stored = self.keys[self.rows], self.values[self.rows]
        for memory, new in zip(stored, (keys, values), strict=True):
            at = positions[..., None] if positions.dim() > 1 else positions[:, None]
            memory.scatter_(2, at.expand_as(new), new)
        own_keys, own_values = (memory[:, :, : self.end] for memory in stored)
        if positions.dim() == 1:
            mask = causal_lower_right(len(positions), self.end)
            return F.scaled_dot_product_attention(queries, own_keys, own_values, attn_mask=mask, enable_gqa=True)
        seen = self.tokens[: self.end] <= positions[..., None]  # [rows, 1, 1, tokens]
        groups = queries.view(len(queries), keys.shape[1], -1, queries.shape[-1])  # queries that share keys are rows
        return F.scaled_dot_product_attention(groups, own_keys, own_values, attn_mask=seen).view(queries.shape)


class Server:
    """The model, and a loop in which the rows of its batch are given to requests."""

    def __init__(self, context: Context, waits_for_all: bool, chunk: int | None, shares: bool) -> None:
        kind = context.device.type
        self.context, self.rows, self.prompt = context, ROWS[kind], SHARED[kind] + OWN[kind]
        self.waits_for_all, self.chunk, self.lengths = waits_for_all, chunk or self.prompt, answers(kind)
        self.spare = self.prompt + LONGEST[kind]  # a place that no text reads, for rows without a token
        shape, size = SHAPES[kind], (self.rows, self.spare + 1, DTYPE[kind], context.device)
        self.model = make_decoder(shape, self.spare + 1, context.seed, DTYPE[kind], context.device)
        self.caches = [RowCache(shape, *size) for _ in range(shape.layers)]
        self.waits_ms: list[float] = []
        self.known = shared_prompt(context) if shares else None
        if self.known is not None:
            count = len(self.known)
            self.pass_over(slice(1), count, self.known[None].to(context.device), torch.arange(count))
            memory = [(cache.keys[0, :, :count], cache.values[0, :, :count]) for cache in self.caches]
            self.begun = [(keys.clone(), values.clone()) for keys, values in memory]

    @torch.inference_mode()
    def pass_over(self, rows: slice, end: int, ids: Tensor, positions: Tensor) -> Tensor:
        """The logits after the last of the ids [rows, new]: float32 [rows, vocabulary]."""
        for cache in self.caches:
            cache.rows, cache.end = rows, end
        logits: Tensor = self.model(ids, positions.to(ids.device), self.caches, last_only=True)
        return logits[:, 0]

    def admit(self, row: int, text: Tensor) -> int:
        """Copies the keys and values of a known beginning to the row; returns its number of tokens."""
        if self.known is None or not torch.equal(text[: len(self.known)], self.known):
            return 0
        for cache, (keys, values) in zip(self.caches, self.begun, strict=True):
            cache.keys[row, :, : len(self.known)], cache.values[row, :, : len(self.known)] = keys, values
        return len(self.known)

    @torch.inference_mode()
    def step(self, given: Tensor) -> Tensor:
        """Serves all requests; returns the logits of the last token of each answer: float32 [requests, vocabulary]."""
        ids, waiting = given.to(self.context.device), deque(range(len(given)))
        last = torch.zeros(len(ids), self.model.lm_head.out_features, device=ids.device)
        owner, read, served_at = dict[int, int](), [0] * self.rows, dict[int, float]()

        def serve(rows: list[int], logits: Tensor) -> None:
            logits.argmax(-1).tolist()  # for which the user waits
            now = perf_counter()
            for row, of_row in zip(rows, logits, strict=True):
                if read[row] > self.prompt:
                    self.waits_ms.append(1e3 * (now - served_at[row]))
                served_at[row], read[row] = now, read[row] + 1
                if read[row] == self.prompt + self.lengths[owner[row]]:
                    last[owner.pop(row)] = of_row

        while waiting or owner:
            for row in range(self.rows if not (self.waits_for_all and owner) else 0):
                if row not in owner and waiting:
                    owner[row] = waiting.popleft()
                    read[row] = self.admit(row, given[owner[row]])
            answering = [row for row in owner if read[row] > self.prompt]
            for row in [row for row in owner if read[row] < self.prompt][: 1 if self.chunk < self.prompt else None]:
                begin, end = read[row], min(self.prompt, read[row] + self.chunk)
                part = ids[owner[row]][None, begin:end]
                logits, read[row] = self.pass_over(slice(row, row + 1), end, part, torch.arange(begin, end)), end
                if end == self.prompt:
                    serve([row], logits)
            if answering:
                at = [read[row] - 1 if row in answering else self.spare for row in range(self.rows)]
                owners, places = torch.tensor([owner.get(row, 0) for row in range(self.rows)]), torch.tensor(at)
                tokens = ids[owners.to(ids.device), places.clamp(max=self.spare - 1).to(ids.device)]
                end = max(read[row] for row in answering)
                logits = self.pass_over(slice(self.rows), end, tokens[:, None], places[:, None, None])
                serve(answering, logits[answering])
        return last

    def take_waits_ms(self) -> list[float]:
        """The time from one token of an answer to the next, in the steps since the last call."""
        taken, self.waits_ms = self.waits_ms, []
        return taken


def serving(context: Context, waits_for_all: bool = False, chunked: bool = False, shares: bool = False) -> Side:
    """`waits_for_all`: the next requests get rows when the longest answer is complete, else as soon as a row is free.

    Prompts are read whole before any answer goes on; `chunked`: in chunks, and answers go on after each. `shares`: the
    keys and values of the common beginning are copied to the row.
    """
    server = Server(context, waits_for_all, CHUNK[context.device.type] if chunked else None, shares)
    return Side(server.step, server.model, waits_ms=server.take_waits_ms)


def size(kind: DeviceKind) -> Size:
    """An item is a token of an answer. FLOPs: 2 per weight of the layers, for the tokens that every side reads. Bytes:
    the weights, once for each token of the longest answer."""
    shape, new = SHAPES[kind], sum(answers(kind))
    layers = shape.weights - shape.vocabulary * shape.width
    read = REQUESTS[kind] * OWN[kind] + new
    return Size(items=new, flops=2.0 * layers * read, bytes=float(LONGEST[kind] * layers * DTYPE[kind].itemsize))


def _rung(name: str, build: Build, below: str, gain: float, limit: Limit, why: str) -> Optimization:
    return Optimization(
        name,
        build,
        {"cuda": gain, "cpu": 0.7 * gain},  # on a CPU, a row without a text costs as much as any other
        "bfloat16",
        compared_with=below,
        tolerance={"bfloat16": Tolerance(relative_l2=5e-2, max_error=2e-1)},
        contract={"cuda": Contract(limits=(limit,))},
        why=why,
    )


FEWER_PASSES, SHORTER_WAITS = (Limit(name, at_most_of_reference=0.8) for name in ("kernels", "wait_p99_ms"))
IN_CHUNKS, WITH_PREFIX = partial(serving, chunked=True), partial(serving, chunked=True, shares=True)
RUNGS = (
    _rung("continuous", serving, BASELINE, 1.3, FEWER_PASSES, "a static batch computes rows without a text"),
    _rung("chunked", IN_CHUNKS, "continuous", 0.6, SHORTER_WAITS, "each chunk reads all weights once more"),
    _rung("prefix-cache", WITH_PREFIX, "chunked", 1.1, FEWER_PASSES, "a known beginning is not read again"),
)
SIZES: dict[DeviceKind, Size] = {"cuda": size("cuda"), "cpu": size("cpu")}
STATIC = partial(serving, waits_for_all=True)
# A pipeline, since the host reads each token and chooses the rows of the next pass.
WORKLOADS: tuple[Workload, ...] = (
    Workload("llm-serving", STATIC, texts, SIZES, RUNGS, cold=False, timing="pipeline", ladder=True),
)

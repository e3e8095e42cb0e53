"""A server of a language model: requests with long prompts and answers of very different lengths share a batch.

A static batch waits for its longest answer. Continuous batching gives the row of a finished request to the next one (Yu
et al., Orca, OSDI 2022). A pass reads a prompt and computes the next token of each answer: all weights are read once
for both. A long prompt makes such a pass long, for which every answer waits; a part of a prompt does not (Agrawal et
al., Sarathi-Serve, OSDI 2024). Keys and values are in pages (Kwon et al., PagedAttention, 2023), so that the beginning
that all prompts share is computed once, and is once in memory. Few and wide layers keep a GPU busier than the host. The
tokens of the answers are given, so that rounding leads no side to another text. The host still waits for the likeliest
token of each answer, as a server does that sends it to a user.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

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
from workloads.llm.model import Shape, make_decoder
from workloads.llm.pages import Pages, Pass
from workloads.parts.random_inputs import host_generator

SHAPES = {
    "cuda": Shape(vocabulary=8192, width=8192, layers=2, heads=64, kv_heads=8, hidden=28_672),
    "cpu": Shape(vocabulary=2048, width=256, layers=2, heads=8, kv_heads=2, hidden=704),
}
DTYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}
REQUESTS, ROWS = {"cuda": 8, "cpu": 12}, {"cuda": 4, "cpu": 4}
SHARED, OWN, CHUNK = {"cuda": 768, "cpu": 96}, {"cuda": 256, "cpu": 32}, {"cuda": 256, "cpu": 32}  # tokens of a prompt
PAGE = {"cuda": 128, "cpu": 16}  # tokens
LONGEST = {"cuda": 32, "cpu": 32}  # tokens of an answer


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


class Server:
    """The model, and a loop in which the rows of its batch are given to requests."""

    def __init__(self, context: Context, waits_for_all: bool, chunked: bool, shares: bool) -> None:
        kind, self.device = context.device.type, context.device
        self.rows, self.prompt, self.page = ROWS[kind], SHARED[kind] + OWN[kind], PAGE[kind]
        self.waits_for_all, self.chunk, self.lengths = (
            waits_for_all,
            CHUNK[kind] if chunked else self.prompt,
            answers(kind),
        )
        known, pages = SHARED[kind] // self.page if shares else 0, -(-(self.prompt + LONGEST[kind]) // self.page)
        own = known + torch.arange(self.rows * (pages - known)).view(self.rows, -1)
        self.table = torch.cat((torch.arange(known).expand(self.rows, -1), own), dim=1).to(self.device)  # [rows, pages]
        self.model = make_decoder(SHAPES[kind], pages * self.page, context.seed, DTYPE[kind], self.device)
        count = known + own.numel()
        size = (count, SHAPES[kind].kv_heads, self.page, SHAPES[kind].head)
        self.caches = [Pages(size, DTYPE[kind], self.device) for _ in range(SHAPES[kind].layers)]
        self.waits_ms, self.known = list[float](), known * self.page  # tokens that are in the cache for each prompt
        if shares:
            self.pass_over(shared_prompt(context)[None].to(self.device), {0: 0}, 0, range(self.known), [], [])

    @torch.inference_mode()
    def pass_over(
        self, ids: Tensor, owner: dict[int, int], reader: int, part: range, rows: Sequence[int], ends: Sequence[int]
    ) -> Tensor:
        """Reads a part of the prompt of the row `reader`, and a token of each of `rows`, at its position in `ends`.

        `owner` has the request of each row, by which its text stands in `ids`. Returns the logits after the last token
        of the part, if there is one, and after each row's token: float32.
        """
        new = [reader] * len(part) + [*rows]
        where = torch.tensor([new, [owner[row] for row in new], [*part, *ends]]).to(self.device)
        pages, positions, answering = self.table[where[0], where[2] // self.page], where[2], where[:, len(part) :]
        now = Pass(
            pages, positions % self.page, part, self.table[reader], self.table[answering[0]], answering[2].contiguous()
        )
        x = self.model.embed_tokens(ids[where[1], positions])[None]
        turn = self.model.cosines[positions], self.model.sines[positions]
        for block, cache in zip(self.model.layers, self.caches, strict=True):
            cache.now = now
            x = block(x, turn, positions, cache)
        logits: Tensor = self.model.lm_head(self.model.norm(x[0, -(len(rows) + bool(part)) :]))
        return logits.float()

    @torch.inference_mode()
    def step(self, given: Tensor) -> Tensor:
        """Serves all requests; returns the logits of the last token of each answer: float32 [requests, vocabulary]."""
        ids, waiting = given.to(self.device), deque(range(len(given)))
        last = torch.zeros(len(ids), self.model.lm_head.out_features, device=self.device)
        owner, read, served_at = dict[int, int](), [0] * self.rows, dict[int, float]()
        while waiting or owner:
            for row in range(self.rows if not (self.waits_for_all and owner) else 0):
                if row not in owner and waiting:
                    owner[row], read[row] = waiting.popleft(), self.known
            reader = next((row for row in owner if read[row] < self.prompt), None)
            served = [row for row in owner if read[row] > self.prompt]
            begin = self.prompt if reader is None else read[reader]
            part = range(begin, min(self.prompt, begin + self.chunk))
            logits = self.pass_over(ids, owner, reader or 0, part, served, [read[row] - 1 for row in served])
            if reader is not None:
                read[reader] = part.stop
                served, logits = ([reader, *served], logits) if part.stop == self.prompt else (served, logits[1:])
            logits.argmax(-1).tolist()  # for which the user waits
            now = perf_counter()
            for row, of_row in zip(served, logits, strict=True):
                if read[row] > self.prompt:
                    self.waits_ms.append(1e3 * (now - served_at[row]))
                served_at[row], read[row] = now, read[row] + 1
                if read[row] == self.prompt + self.lengths[owner[row]]:
                    last[owner.pop(row)] = of_row
        return last

    def take_waits_ms(self) -> list[float]:
        """The time from one token of an answer to the next, in the steps since the last call."""
        taken, self.waits_ms = self.waits_ms, []
        return taken


def serving(context: Context, waits_for_all: bool = False, chunked: bool = False, shares: bool = False) -> Side:
    """`waits_for_all`: the next requests get rows when the longest answer is complete, else as soon as a row is free.

    A pass reads a whole prompt; `chunked`: a part of it. `shares`: the pages of the common beginning are those of each
    row.
    """
    server = Server(context, waits_for_all, chunked, shares)
    return Side(server.step, server.model, waits_ms=server.take_waits_ms)


def size(kind: DeviceKind) -> Size:
    """An item is a token of an answer. FLOPs: 2 per weight of the layers, for the tokens that every side reads. Bytes:
    the weights, once for each token of the longest answer."""
    shape, new = SHAPES[kind], sum(answers(kind))
    layers = shape.weights - shape.vocabulary * shape.width
    read = REQUESTS[kind] * OWN[kind] + new
    return Size(items=new, flops=2.0 * layers * read, bytes=float(LONGEST[kind] * layers * DTYPE[kind].itemsize))


def _rung(name: str, build: Build, below: str, gain: float, why: str, *limits: Limit) -> Optimization:
    return Optimization(
        name,
        build,
        {"cuda": gain, "cpu": 0.7 * gain},  # on a CPU, a pass over one token is cheap
        "bfloat16",
        compared_with=below,
        tolerance={"bfloat16": Tolerance(relative_l2=5e-2, max_error=2e-1)},
        contract={"cuda": Contract(limits=limits)},
        why=why,
    )


FEWER, SHORTER_WAITS = Limit("kernels", at_most_of_reference=0.9), Limit("wait_p99_ms", at_most_of_reference=0.8)
IN_PARTS, WITH_PREFIX = partial(serving, chunked=True), partial(serving, chunked=True, shares=True)
AS_SHORT_WAITS = Limit("wait_p99_ms", at_most_of_reference=1.3)
# On an H200 they had 1.3x, 0.8x and 1.8x; with prompts in parts, the slowest hundredth of tokens took 0.6 of the time.
RUNGS = (
    _rung("continuous", serving, BASELINE, 1.1, "a static batch waits for its longest answer", FEWER, AS_SHORT_WAITS),
    _rung("chunked", IN_PARTS, "continuous", 0.62, "more passes read all weights", SHORTER_WAITS),
    _rung("prefix-cache", WITH_PREFIX, "chunked", 1.47, "a known beginning is not read again", FEWER, AS_SHORT_WAITS),
)
SIZES: dict[DeviceKind, Size] = {"cuda": size("cuda"), "cpu": size("cpu")}
STATIC = partial(serving, waits_for_all=True)
# A pipeline, since the host reads each token and chooses the rows of the next pass.
WORKLOADS: tuple[Workload, ...] = (
    Workload("llm-serving", STATIC, texts, SIZES, RUNGS, cold=False, timing="pipeline", ladder=True),
)

"""Speculative decoding: a draft proposes tokens, and the model checks them all in one step (Leviathan et al., 2023).

The draft is a decoder of two narrow layers, which computes each of its tokens. Random weights agree on no token, so a
script replaces most of them: a token is the model's with a seeded probability, and otherwise the draft's. The tokens
are those of the model alone: FP32 on every device, since in bf16 a step of one token and a step of five round
differently, and two tokens may tie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.llm.context import CONTEXT_TOKENS, PROMPT_TOKENS, decoder, shape, text
from workloads.llm.model import Decoder, Shape, StaticCache, make_decoder
from workloads.llm.rungs import make_static_caches
from workloads.parts.random_inputs import host_generator

SPAN_TOKENS = 8  # of one step
TEXT_TOKENS = PROMPT_TOKENS + 6 * SPAN_TOKENS
DRAFTED, ACCEPTANCE = 4, 0.8
DRAFT = {"cuda": Shape(128_256, 512, 2, 8, 2, 2048), "cpu": Shape(8192, 128, 2, 2, 1, 352)}


class Span(NamedTuple):
    """A part of the text, on the host: its first position, int64 [1], and where the draft is right, bool [tokens]."""

    start: Tensor
    right: Tensor


def span(context: Context, index: int) -> Span:
    random = host_generator(context, index)
    start = torch.randint(PROMPT_TOKENS, TEXT_TOKENS - SPAN_TOKENS, (1,), generator=random)
    return Span(start, torch.rand(SPAN_TOKENS, generator=random) < ACCEPTANCE)


def one_by_one(context: Context) -> Side:
    """The model's likeliest token, SPAN_TOKENS times."""
    model, caches = decoder(context, precision=torch.float32), make_static_caches(context, 1, torch.float32)
    known = continue_greedily(context, model, caches)

    @torch.inference_mode()
    def step(inputs: Span) -> Tensor:
        start, ids = int(inputs.start), []
        latest = known[:, start : start + 1]
        for position in range(start, start + SPAN_TOKENS):
            latest = pick_likeliest(model(latest, torch.tensor([position], device=context.device), caches))
            ids.append(latest)
        return torch.cat(ids, dim=1).float()

    return Side(step, model)


def speculative(context: Context) -> Side:
    """The model reads its weights once for a token and all drafts after it."""
    model, caches = decoder(context, precision=torch.float32), make_static_caches(context, 1, torch.float32)
    known = continue_greedily(context, model, caches)
    small, small_caches = make_draft(context)
    vocabulary = shape(context).vocabulary
    small(known[:, :TEXT_TOKENS], torch.arange(TEXT_TOKENS, device=context.device), small_caches, last_only=True)

    @torch.inference_mode()
    def step(inputs: Span) -> Tensor:
        start, right = int(inputs.start), inputs.right.to(context.device)
        latest, done, count = known[:, start : start + 1], [], 0
        while count < SPAN_TOKENS:
            drafted = min(DRAFTED, SPAN_TOKENS - count - 1)  # no token beyond the span, whose cache the next step reads
            at = start + count
            positions = torch.arange(at, at + drafted + 1, device=context.device)
            tokens = [latest]
            for place in range(drafted):
                guess = small(tokens[-1], positions[place : place + 1], small_caches).argmax(dim=-1)
                tokens.append(follow_script(guess, known[:, at + 1 + place], right[count + place], vocabulary))
            proposed = torch.cat(tokens, dim=1)
            own = pick_likeliest(model(proposed, positions, caches))  # [1, drafted + 1]
            accepted = int((own[:, :-1] == proposed[:, 1:]).cumprod(dim=1).sum())
            done.append(own[:, : accepted + 1])
            latest, count = own[:, accepted : accepted + 1], count + accepted + 1
        return torch.cat(done, dim=1).float()

    return Side(step, model)


def make_draft(context: Context) -> tuple[Decoder, list[StaticCache]]:
    size = replace(DRAFT[context.device.type], vocabulary=shape(context).vocabulary)
    model = make_decoder(size, CONTEXT_TOKENS, context.seed + 1, torch.float32, context.device)
    caches = [StaticCache(size, 1, CONTEXT_TOKENS, torch.float32, context.device) for _ in range(size.layers)]
    return model, caches


def follow_script(guess: Tensor, known: Tensor, right: Tensor, vocabulary: int) -> Tensor:
    """The known token where the draft is right, and elsewhere its guess, which becomes another token if it is right."""
    return torch.where(right, known, torch.where(guess == known, (known + 1) % vocabulary, guess))


def pick_likeliest(logits: Tensor) -> Tensor:
    return logits.argmax(dim=-1)


@torch.inference_mode()
def continue_greedily(context: Context, model: Decoder, caches: list[StaticCache]) -> Tensor:
    """The prompt and the model's likeliest tokens after it: int64 [1, TEXT_TOKENS + 1]; fills the caches."""
    ids = text(context, 1)[:, :PROMPT_TOKENS]
    positions = torch.arange(TEXT_TOKENS, device=context.device)
    ids = torch.cat((ids, pick_likeliest(model(ids, positions[:PROMPT_TOKENS], caches, last_only=True))), dim=1)
    for position in range(PROMPT_TOKENS, TEXT_TOKENS):
        ids = torch.cat((ids, pick_likeliest(model(ids[:, -1:], positions[position : position + 1], caches))), dim=1)
    return ids

"""The text that a decoder has read, and the token whose logits a step computes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpugate.workload import Context
from workloads.llm.model import LLAMA_1B, SMALL, Shape
from workloads.parts.random_inputs import host_generator

PROMPT_TOKENS, NEW_TOKENS = 128, 128
CONTEXT_TOKENS = PROMPT_TOKENS + NEW_TOKENS
MIDDLE = PROMPT_TOKENS + NEW_TOKENS // 2  # here a step reads as many keys and values as the average new token


class Token(NamedTuple):
    """The tokens at one position of all sequences: ids int64 [batch, 1], and their position int64 [1].

    A growing cache needs the position on the host, other caches need it on the device.
    """

    ids: Tensor
    position: Tensor
    host_position: Tensor


def shape(context: Context) -> Shape:
    return SMALL if context.device.type == "cpu" else LLAMA_1B


def dtype(context: Context) -> torch.dtype:
    return torch.float32 if context.device.type == "cpu" else torch.bfloat16


def draw_ids(context: Context, index: int, sequences: int, tokens: int) -> Tensor:
    """Random ids of input set `index`: int64 [sequences, tokens] on the context's device."""
    random = host_generator(context, index)
    return torch.randint(shape(context).vocabulary, (sequences, tokens), generator=random).to(context.device)


def text(context: Context, sequences: int) -> Tensor:
    """Random ids, int64 [sequences, CONTEXT_TOKENS], on the context's device, equal for all sides."""
    random = torch.Generator().manual_seed(context.seed)
    ids = torch.randint(shape(context).vocabulary, (sequences, CONTEXT_TOKENS), generator=random)
    return ids.to(context.device)


def token_at(context: Context, ids: Tensor, position: int) -> Token:
    host_position = torch.tensor([position])
    return Token(ids.clone(), host_position.to(context.device, copy=True), host_position)


def token(context: Context, index: int) -> Token:
    """A random token at the position MIDDLE of each sequence: a step overwrites what the step before it has cached."""
    return token_at(context, draw_ids(context, index, context.items, 1), MIDDLE)

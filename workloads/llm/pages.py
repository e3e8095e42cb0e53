"""A cache of keys and values in pages, for passes that read a part of a prompt beside the newest tokens of answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from workloads.llm.model import UNWRITTEN


@dataclass(frozen=True)
class Pass:
    """The new tokens of a pass of the model: first a part of one prompt, which may be empty, then one token of each row
    that answers. `pages` and `places` are where their keys and values belong: int64 [new].
    """

    pages: Tensor
    places: Tensor
    part: range  # of positions
    prompt_pages: Tensor  # int64 [pages of a row]
    answer_pages: Tensor  # of each row that answers: int64 [rows, pages of a row]
    newest_positions: Tensor  # of the tokens of these rows: int64 [rows]


class Pages:
    """The keys and values of one layer: [pages, kv_heads, tokens of a page, head]. `now` is set before each pass."""

    now: Pass

    def __init__(self, size: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.keys, self.values = (torch.full(size, UNWRITTEN, dtype=dtype, device=device) for _ in range(2))

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        now, count = self.now, len(self.now.part)
        self.keys[now.pages, :, now.places] = keys[0].transpose(0, 1)  # [new, kv_heads, head]
        self.values[now.pages, :, now.places] = values[0].transpose(0, 1)
        attended = list[Tensor]()
        if count:
            own = (
                copy_pages(memory, now.prompt_pages[None])[:, :, : now.part.stop] for memory in (self.keys, self.values)
            )
            attended.append(attend_to_prompt(queries[:, :, :count], *own))
        if len(now.newest_positions):
            newest = queries[0, :, count:].transpose(0, 1)[:, :, None]  # [rows, heads, 1, head]
            attended.append(self.attend_to_rows(newest)[:, :, 0].transpose(0, 1)[None])
        return torch.cat(attended, dim=2)

    def attend_to_rows(self, newest: Tensor) -> Tensor:
        """The attention of the newest token of each row. A GPU reads each page where it lies."""
        table, positions = self.now.answer_pages, self.now.newest_positions
        if newest.is_cuda:
            from workloads.llm.paged_attention import attend  # which needs Triton

            return attend(newest, self.keys, self.values, table, positions, splits=table.shape[1])
        keys, values = copy_pages(self.keys, table), copy_pages(self.values, table)
        seen = torch.arange(keys.shape[2]) <= positions[:, None, None, None]
        return F.scaled_dot_product_attention(newest, keys, values, attn_mask=seen, enable_gqa=True)


def attend_to_prompt(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The attention of the last tokens of a prompt, each to the tokens up to itself."""
    seen = causal_lower_right(queries.shape[2], keys.shape[2])
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, enable_gqa=True)


def copy_pages(memory: Tensor, table: Tensor) -> Tensor:
    """The pages of some rows in the order of their tokens: [rows, kv_heads, tokens, head]."""
    return memory[table].transpose(1, 2).flatten(2, 3)

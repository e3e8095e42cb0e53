"""Plain functions of tensors, fused by a compiler where they run on a GPU, and the one batch size that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def fused(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """`function` itself on a CPU; on a GPU as Inductor compiles it, in one graph and anew for every shape.

    Numbers among its arguments become constants of the kernels.
    """
    if device.type == "cpu":
        return function
    return torch.compile(function, fullgraph=True, dynamic=False)  # cuda only


class WholeBatch:
    """Fills batches up to the size of the largest one so far: a clip's last one must not be compiled for."""

    def __init__(self) -> None:
        self._frames = 0

    def __call__(self, batch: Tensor) -> Tensor:
        """`batch`, [n, ...], or a longer one that begins with it and is laid out like it; what follows is anything."""
        self._frames = max(self._frames, len(batch))
        if len(batch) == self._frames:
            return batch
        with torch.inference_mode(batch.is_inference()):  # else what was compiled for the one is compiled for the other
            whole = batch.new_empty_strided((self._frames, *batch.shape[1:]), batch.stride())
            whole[: len(batch)] = batch
        return whole

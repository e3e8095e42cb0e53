"""The stages of a training step as NVTX ranges, so that a timeline shows what the loop was doing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def stage(name: str) -> AbstractContextManager[object]:
    """An NVTX range on the calling thread; nothing where CUDA is not in use.

    Launches are asynchronous: trust the range as projected on the GPU, not the host's.
    """
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.nvtx.range(name) if in_use else nullcontext()

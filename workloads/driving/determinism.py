"""A context of deterministic algorithms that restores every switch it changes, so that no other side is affected."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpugate.errors import DisprovedError

WORKSPACE, WORKSPACE_SIZE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
UNABLE = "does not have a deterministic implementation"


@contextmanager
def deterministic() -> Iterator[None]:
    """Inside, torch chooses deterministic algorithms; an operation that has none raises DisprovedError at the end.

    torch reads cuBLAS's variable once a process, at the first matrix product, which may be over: torch would then
    refuse every later product. The guarantee of the variable holds here without it: torch sets a workspace of its own
    for every cuBLAS handle and stream, and a single stream runs here. So operations warn instead of refusing, and all
    warnings count but cuBLAS's.
    """
    before = _State()
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            os.environ[WORKSPACE] = WORKSPACE_SIZE
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.backends.cudnn.benchmark = False  # autotuning might choose another algorithm in the next run
            yield
    finally:
        before.restore()
    unable = sorted({str(each.message).split(maxsplit=1)[0] for each in said if UNABLE in str(each.message)})
    if unable:
        raise DisprovedError(f"deterministic mode leaves {', '.join(unable)} as it is: use another operation")


class _State:
    """The current switches of the process."""

    def __init__(self) -> None:
        self._enabled = torch.are_deterministic_algorithms_enabled()
        self._warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        self._benchmark = torch.backends.cudnn.benchmark
        self._workspace = os.environ.get(WORKSPACE)

    def restore(self) -> None:
        torch.use_deterministic_algorithms(self._enabled, warn_only=self._warn_only)
        torch.backends.cudnn.benchmark = self._benchmark
        if self._workspace is None:
            os.environ.pop(WORKSPACE, None)
        else:
            os.environ[WORKSPACE] = self._workspace

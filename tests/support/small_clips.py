"""A clip that a CPU decodes in milliseconds, in place of the one that the workloads of the video have there."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from workloads.video.clip.clip import CLIPS, Clip
from workloads.video.segmenter import fitted_weights


@contextmanager
def clip_on_cpu(monkeypatch: pytest.MonkeyPatch, clip: Clip) -> Iterator[None]:
    """Gives the workloads `clip`; afterwards torch has its threads again, and no weights fitted to it stay."""
    threads = torch.get_num_threads()
    monkeypatch.setitem(CLIPS, "cpu", clip)  # type: ignore[arg-type]
    yield
    torch.set_num_threads(threads)
    fitted_weights.cache_clear()

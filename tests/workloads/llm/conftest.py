"""A decoder that is small enough to be compiled and decoded many times."""

from pathlib import Path

import pytest
import torch

from gpugate.workload import Context
from workloads.llm import tokens
from workloads.llm.model import Shape

TINY = Shape(vocabulary=97, width=32, layers=2, heads=4, kv_heads=2, hidden=48)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Context:
    """The context of two sequences, whose decoder has the shape TINY."""
    monkeypatch.setattr(tokens, "SMALL", TINY)
    return Context(torch.device("cpu"), items=2, seed=5, cache_dir=Path())

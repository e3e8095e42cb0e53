"""A decoder that is small enough to be compiled and decoded many times."""

from pathlib import Path

import pytest
import torch

from gpugate.workload import Context
from tests.support.small_models import TINY
from workloads.llm import model as llm_model


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Context:
    """The context of two sequences, whose decoder has the shape TINY."""
    monkeypatch.setattr(llm_model, "SMALL", TINY)
    return Context(torch.device("cpu"), items=2, seed=5, cache_dir=Path())

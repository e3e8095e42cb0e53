"""Captures that cannot succeed, on a real GPU: the cause is said, and everything works afterwards."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from workloads.parts.graph_capture import recorded

MIB = 2**20


def dropped(values: Tensor) -> Tensor:
    return torch.nn.functional.dropout(values, 0.5)


def test_a_capture_that_waits_for_the_device_leaves_it_usable() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    values, current = torch.ones(MIB, device=device), torch.cuda.current_stream(device)

    def waiting() -> float:
        return dropped(values).sum().item() if torch.cuda.is_current_stream_capturing() else 0.0

    before = torch.cuda.memory_reserved(device)
    with pytest.raises(RuntimeError, match=r"no CUDA graph could be captured \(.*capturing"):
        recorded(waiting, torch.cuda.Stream(device))
    assert torch.cuda.current_stream(device) == current
    kept = dropped(values).mean()  # random numbers outside of any graph
    assert 0.9 < float(kept) < 1.1

    graph, result = recorded(lambda: dropped(values).sum(), torch.cuda.Stream(device))
    sums = set()
    for _ in range(3):
        graph.replay()
        sums.add(float(result))
    assert len(sums) == 3, "every replay drops others"
    del graph, result, kept
    gc.collect()  # the error's frames
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(device) <= before + 2 * MIB


def test_an_error_of_the_program_leaves_the_device_usable() -> None:
    device = torch.device("cuda", torch.cuda.current_device())

    def failing() -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("no such picture")
        return torch.rand(8, device=device)

    with pytest.raises(RuntimeError, match="ValueError: no such picture"):
        recorded(failing, torch.cuda.Stream(device))
    assert torch.rand(8, device=device).isfinite().all()

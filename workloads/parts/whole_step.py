"""A whole training iteration, from the next batch to the update of the weights, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from workloads.parts.graph_capture import recorded

_Done = TypeVar("_Done")


def captured(
    work: Callable[[], _Done],
    state: Sequence[Tensor],
    scaler: torch.amp.GradScaler,  # type: ignore[name-defined]
    device: torch.device,
) -> Callable[[], _Done]:  # cuda only
    """Replays `work`, captured on a stream of its own; every replay overwrites the tensors that it returns.

    `work` runs a few times before the capture: `state`, all tensors that it changes, and the loss scale are restored
    afterwards. Loss scaling stays right within a graph: the device decides whether a gradient overflowed, the fused
    update reads that and the scale on the device, and the scale is updated in place.
    """
    before, scale_before = [tensor.detach().clone() for tensor in state], scaler.state_dict()
    graph, done = recorded(work, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
    scaler.load_state_dict(scale_before)

    def replay() -> _Done:
        graph.replay()
        return done

    return replay

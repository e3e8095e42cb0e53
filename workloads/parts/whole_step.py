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
    """Replays `work`, captured on a stream of its own; the tensors it returns are overwritten by every replay.

    `work` runs a few times before: `state`, all tensors that it changes, and the loss scale are then as they were.
    Loss scaling stays right within a graph: whether a gradient overflowed is decided on the device, where the fused
    update reads it as it reads the scale, and the scale is updated in place.
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

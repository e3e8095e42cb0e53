"""Frames on which a stream of the device still works, with the event for which their user waits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def _nothing() -> None:
    """Returns at once: frames from the host are complete."""


@dataclass(frozen=True)
class PendingFrames:
    """Frames, complete once `wait()` has returned. It waits for one event, never for the whole device."""

    frames: Tensor
    wait: Callable[[], object] = _nothing


def as_of_now(frames: Tensor) -> PendingFrames:
    """The frames, complete when the present work of the caller's stream is done."""
    if not frames.is_cuda:
        return PendingFrames(frames)
    done = event()  # cuda only
    done.record(torch.cuda.current_stream(frames.device))  # cuda only
    return PendingFrames(frames, done.synchronize)  # cuda only


@functools.lru_cache(maxsize=8)
def encoders_stream(device: torch.device) -> torch.cuda.Stream:  # cuda only
    """The stream of all encoders of a device: PyTorch has 32, which one for every file would soon share with others.

    Streams of high priority are another 32, so that no decoder or stage ever shares this one.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def event() -> torch.cuda.Event:  # cuda only
    """An event with a blocking wait: a spinning thread would take a core from the encoder's."""
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

"""Frames on their way from the device to the host: a copy stream fills page-locked buffers that are used in turn."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.video.encode.pending_frames import PendingFrames, encoders_stream, event


class PageLockedRing:  # cuda only
    """`slots` buffers of uint8 [frames, rows, columns]. The caller knows when a slot may be filled again."""

    def __init__(self, slots: int, shape: tuple[int, int, int], device: torch.device) -> None:
        self._device = device
        self._buffers = [torch.empty(shape, dtype=torch.uint8, pin_memory=True) for _ in range(slots)]
        self._copied = [event() for _ in range(slots)]
        self._stream = encoders_stream(device)
        self._turn = 0

    def copy(self, frames: Tensor) -> PendingFrames:
        """Begins to copy the frames, after the caller's stream's pending work, into the slot filled longest ago."""
        slot = self._turn
        self._turn = (slot + 1) % len(self._buffers)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        target, copied = self._buffers[slot][: len(frames)], self._copied[slot]
        with torch.cuda.stream(self._stream):
            target.copy_(frames, non_blocking=True)
        frames.record_stream(self._stream)  # freed while the copy is in flight, their memory stays ours until then
        copied.record(self._stream)
        return PendingFrames(target, copied.synchronize)

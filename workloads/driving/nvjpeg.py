"""A source of driving frames that cross the bus as JPEGs and are decoded by the GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.driving.data import Frames
from workloads.driving.delivery import Batch, BatchOrder


class NvJpeg:  # cuda only
    """JPEGs cross the bus and the GPU decodes them, where `nvjpeg_probe` finds no obstacle."""

    stock = 0

    def __init__(self, frames: Frames, order: BatchOrder, device: torch.device) -> None:
        self._frames, self._order, self._device = frames, iter(order), device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def take(self) -> Batch:
        numbers = next(self._order)
        indices = torch.tensor(numbers)
        labels = (self._frames.commands[indices], self._frames.waypoints[indices], indices)
        current = torch.cuda.current_stream(self._device)
        # torchvision decodes on a stream of its own and never waits for the last user of the memory of its results. On
        # our stream, with its own share of the allocator, that user can only be the stacking of an earlier batch.
        self._stream.synchronize()
        with torch.cuda.stream(self._stream):
            images = self._decoded(numbers)
            batch = Batch(images, *(label.to(self._device) for label in labels))
        current.wait_stream(self._stream)
        for tensor in batch:
            tensor.record_stream(current)
        return batch

    def why_not(self) -> str | None:
        return None  # decoding raises where the GPU cannot decode; the counters show that few bytes crossed the bus

    def close(self) -> None:
        torch.cuda.synchronize(self._device)

    def _decoded(self, numbers: list[int]) -> Tensor:
        """uint8 [frames, cameras, 3, height, width]; raises ValueError naming a file that is corrupt."""
        from torchvision.io import ImageReadMode, decode_jpeg

        encoded = [jpeg for number in numbers for jpeg in self._frames.jpegs(number)]
        try:
            pictures = torch.stack(decode_jpeg(encoded, ImageReadMode.RGB, self._device))
        except RuntimeError:
            for number in numbers:
                self._frames.decoded(number)  # the GPU's decoder names no file: this call raises for the corrupt one
            raise
        rig = self._frames.rig
        return pictures.view(len(numbers), rig.cameras, 3, rig.height, rig.width)

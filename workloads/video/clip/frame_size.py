"""The size of every frame of a clip, for which the stages are built."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FrameSize:
    """Height and width in pixels; raises ValueError unless both are even, as chroma of half the size requires."""

    height: int
    width: int

    def __post_init__(self) -> None:
        if self.height % 2 or self.width % 2 or min(self.height, self.width) < 2:
            raise ValueError(f"4:2:0 has no frames of {self.height} x {self.width} pixels: give even numbers")

    def check_nv12(self, batch: Tensor) -> None:
        """Raises ValueError unless `batch` is uint8 [n, height*3/2, width], with at least one frame."""
        frame = (self.height * 3 // 2, self.width)
        if batch.dtype != torch.uint8 or batch.shape[1:] != frame or not len(batch):
            given = f"{str(batch.dtype).removeprefix('torch.')} {list(batch.shape)}"
            wanted = f"uint8 [n, {frame[0]}, {frame[1]}]"
            raise ValueError(f"{given} is no NV12 of {self.height} x {self.width} pixels: give {wanted}")

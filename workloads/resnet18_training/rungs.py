"""The rungs of a training ladder: each is the rung before it with one change, on a GPU and, smaller, on a CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from workloads.resnet18_training.data import PREFETCH_FACTOR
from workloads.resnet18_training.step import NHWC, Recipe

LARGE, LARGE_ON_CPU = 512, 32  # pictures in a large batch


@dataclass(frozen=True)
class Rung:
    """The settings of a training: the source of its batches, and the recipe of its computation.

    The loader sends pieces of `piece` pictures on every rung, and a larger batch is joined on the device: the loader's
    stock stays one step.
    """

    workers: int = 0
    pinned: bool = False
    non_blocking: bool = False
    uint8: bool = False  # torchvision's v2 resizes bytes, bytes cross the bus, and the device normalizes them
    batch: int = 32
    prefetched: bool = False
    resident: bool = False
    whole_graph: bool = False
    autotuned: bool = False  # cuDNN times its algorithms at the first iteration and keeps the fastest
    recipe: Recipe = Recipe()
    piece: int = 32
    side_pixels: int = 224

    def stock_steps(self, items: int) -> int:
        """The largest number of steps whose data workers, and a copy stream, have ready."""
        pictures = self.workers * PREFETCH_FACTOR * self.piece + (self.batch if self.prefetched else 0)
        return math.ceil(pictures / items)


BOTTOM = Rung()
WORKERS = replace(BOTTOM, workers=8)
PINNED = replace(WORKERS, pinned=True)
NON_BLOCKING = replace(PINNED, non_blocking=True)
UINT8 = replace(NON_BLOCKING, uint8=True)
LARGE_BATCH = replace(UINT8, batch=LARGE)
HALF = replace(LARGE_BATCH, recipe=Recipe(half=torch.float16))
COMPILED = replace(HALF, recipe=Recipe(half=torch.float16, compiled=True))
COPY_STREAM = replace(COMPILED, prefetched=True)
CHANNELS_LAST = replace(COPY_STREAM, autotuned=True, recipe=replace(COMPILED.recipe, layout=NHWC))
RESIDENT = Rung(batch=LARGE, resident=True, autotuned=True, recipe=replace(CHANNELS_LAST.recipe, stem_channels=4))
WHOLE_STEP = replace(
    RESIDENT, whole_graph=True, recipe=replace(RESIDENT.recipe, fused_update=True, gathered_pool=True, tuned=True)
)

CPU_BOTTOM = Rung(batch=8, piece=8, side_pixels=32)
CPU_WORKERS = replace(CPU_BOTTOM, workers=2)
CPU_HALF = replace(CPU_WORKERS, recipe=Recipe(half=torch.bfloat16))
CPU_LARGE_BATCH = replace(CPU_HALF, batch=LARGE_ON_CPU)
CPU_COMPILED = replace(CPU_LARGE_BATCH, recipe=Recipe(half=torch.bfloat16, compiled=True))

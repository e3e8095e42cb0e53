"""The sides of compositing: OpenCV on the host, against blurs and blends on the device.

A step gets the numbers of some frames, int64 [items], blurs their background, and returns the luma of the composites at
some of their pixels, float32 [items, rows, columns], 0..255. A proof compares all pixels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from gpugate.workload import Context, DeviceKind, Side, Size
from workloads.video.clip.clip import CLIPS, source
from workloads.video.clip.frame_bank import bgr_frames, chosen, nv12_frames, one_thread_on_cpu
from workloads.video.composite.compositing import OnDevice, on_host
from workloads.video.decode.arrivals import luma_of_bgr, luma_of_nv12
from workloads.video.preprocess.preprocessing import input_size

ITEMS: Mapping[DeviceKind, int] = {"cuda": 8, "cpu": 4}
Library = Literal["torch", "cvcuda", "triton"]
CERTAIN = 4.0  # the logit of a mask: 98 %


def size(kind: DeviceKind) -> Size:
    """Bytes: each frame read once and written once in NV12. FLOPs: none, as a blur may take many or few."""
    clip = CLIPS[kind]
    return Size(items=ITEMS[kind], flops=0.0, bytes=2.0 * ITEMS[kind] * clip.width * clip.height * 3 // 2)


@functools.lru_cache(maxsize=2)
def _logits(height: int, width: int, frames: int, device: torch.device) -> Tensor:
    """float32 [frames, 2, h, w]: a soft disc of foreground that moves from frame to frame."""
    h, w = input_size(height, width)
    rows, columns = torch.arange(h, device=device)[:, None] / h, torch.arange(w, device=device) / w
    turns = torch.arange(frames, device=device)[:, None, None] * (2 * torch.pi / frames)
    distance = ((rows - 0.5 - 0.2 * turns.sin()) ** 2 + (columns - 0.5 - 0.2 * turns.cos()) ** 2).sqrt()
    foreground = ((0.3 - distance) * 40).clamp(-CERTAIN, CERTAIN)
    return torch.stack((torch.zeros_like(foreground), foreground), 1)


def by_opencv(context: Context) -> Side:
    """OpenCV's side. The logits come from the device, where the network leaves them; the composites stay on host."""
    matrix, composited = source(context).info.matrix, composited_by_opencv(context)
    return Side(lambda numbers: luma_of_bgr(composited(numbers), matrix).to(context.device))


def composited_by_opencv(context: Context) -> Callable[[Tensor], Any]:
    frames = bgr_frames(context)
    logits = _logits(*frames.shape[1:3], len(frames), context.device)

    def composited(numbers: Tensor) -> Any:
        these = chosen(numbers)
        return on_host(frames[these], logits[these].cpu())

    return composited


def in_nv12(library: Library, context: Context) -> Side:
    """The side that composites NV12 where it lies: on the device, or on the host where there is none."""
    composited = composited_in_nv12(library, context)
    return Side(lambda numbers: luma_of_nv12(composited(numbers)))


def composited_in_nv12(library: Library, context: Context) -> Callable[[Tensor], Tensor]:
    one_thread_on_cpu(context.device)
    info, frames = source(context).info, nv12_frames(context)
    logits = _logits(info.height, info.width, len(frames), context.device)
    run: Callable[[Tensor, Tensor], Tensor] = OnDevice(info.height, info.width, context.device)
    if library == "cvcuda":
        from workloads.video.composite.compositing_cvcuda import CvCuda  # cuda only

        run = CvCuda(info.height, info.width, context.device)  # cuda only
    if library == "triton":
        from workloads.video.composite.compositing_triton import OneKernel  # cuda only

        run = OneKernel(info.height, info.width, context.device)  # cuda only
    return lambda numbers: run(frames[chosen(numbers)], logits[chosen(numbers)])

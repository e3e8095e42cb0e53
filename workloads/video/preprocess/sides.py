"""The sides of preprocessing: OpenCV on the host, against sampling where the decoder left the frames.

A step gets the numbers of some frames, int64 [items], and returns the network's inputs, float32 [items, 3, h, w] on the
device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from gpugate.workload import Context, DeviceKind, Side, Size
from workloads.video.clip.clip import CLIPS, source
from workloads.video.clip.frame_bank import bgr_frames, chosen, nv12_frames, one_thread_on_cpu
from workloads.video.preprocess.preprocessing import OnDevice, input_size, on_host

ITEMS: Mapping[DeviceKind, int] = {"cuda": 8, "cpu": 8}


def size(kind: DeviceKind) -> Size:
    """The bytes of a step: the sampled pixels of the frames, read once, and the float32 result, written once."""
    clip = CLIPS[kind]
    h, w = input_size(clip.height, clip.width)
    return Size(items=ITEMS[kind], flops=0.0, bytes=float(ITEMS[kind] * h * w * (3 + 4 * 3)))


def by_opencv(context: Context) -> Side:
    """OpenCV's side: frames are resized, normalized and copied to the device."""
    frames = bgr_frames(context)
    return Side(lambda numbers: on_host(frames[chosen(numbers)], context.device))


def from_nv12(library: Literal["torch", "cvcuda", "triton"], context: Context) -> Side:
    """The side that samples and normalizes NV12 where it lies: on the device, or on the host where there is none."""
    one_thread_on_cpu(context.device)
    info, frames = source(context).info, nv12_frames(context)
    form = info.height, info.width, context.device, torch.float32, info.matrix
    if library == "cvcuda":
        from workloads.video.preprocess.preprocessing_cvcuda import CvCuda  # cuda only

        by_cvcuda = CvCuda(*form)  # cuda only
        return Side(lambda numbers: by_cvcuda(frames[chosen(numbers)]))  # cuda only
    if library == "triton":
        from workloads.video.preprocess.preprocessing_triton import OneKernel  # cuda only

        by_triton = OneKernel(*form)  # cuda only
        return Side(lambda numbers: by_triton(frames[chosen(numbers)]))  # cuda only
    by_torch = OnDevice(*form)
    return Side(lambda numbers: by_torch(frames[chosen(numbers)]))

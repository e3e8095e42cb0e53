"""The stage that preprocesses: OpenCV on the host, against what samples frames where the decoder left them.

A step gets the numbers of some frames, int64 [items], and returns what the network sees of them, float32 [items, 3, h,
w] on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch

from gpugate.workload import Context, Contract, DeviceKind, Limit, Needs, Optimization, Side, Size, Tolerance, Workload
from workloads.video_segmentation.decode_stage import HOST, INSTALL, INSTALL_VIDEO, ON_HOST
from workloads.video_segmentation.frame_bank import batch_numbers, bgr_frames, chosen, nv12_frames, one_thread_on_cpu
from workloads.video_segmentation.preprocessing import OnDevice, input_size, on_host
from workloads.video_segmentation.source_clip import CLIPS, source

ITEMS: Mapping[DeviceKind, int] = {"cuda": 8, "cpu": 8}


def size(kind: DeviceKind) -> Size:
    """Bytes: what is sampled of the frames, read once, and the float32 result, written once."""
    clip = CLIPS[kind]
    h, w = input_size(clip.height, clip.width)
    return Size(items=ITEMS[kind], flops=0.0, bytes=float(ITEMS[kind] * h * w * (3 + 4 * 3)))


def by_opencv(context: Context) -> Side:
    """Resized, normalized and copied to the device."""
    frames = bgr_frames(context)
    return Side(lambda numbers: on_host(frames[chosen(numbers)], context.device))


def from_nv12(library: Literal["torch", "cvcuda"], context: Context) -> Side:
    """Sampled and normalized where NV12 lies: on the device, or on the host where there is none."""
    one_thread_on_cpu(context.device)
    info, frames = source(context).info, nv12_frames(context)
    form = info.height, info.width, context.device, torch.float32, info.matrix
    if library == "cvcuda":
        from workloads.video_segmentation.preprocessing_cvcuda import CvCuda  # cuda only

        by_cvcuda = CvCuda(*form)  # cuda only
        return Side(lambda numbers: by_cvcuda(frames[chosen(numbers)]))  # cuda only
    by_torch = OnDevice(*form)
    return Side(lambda numbers: by_torch(frames[chosen(numbers)]))


# Levels of bytes are rounded here and there, by one of 255 and by CV-CUDA by three; normalized values are about 1.
ROUNDED = {dtype: Tolerance(relative_l2=1.5e-2, max_error=5e-2) for dtype in ("float32", "float16")}
ROUNDED_BY_CVCUDA = {dtype: Tolerance(relative_l2=3e-2, max_error=5e-2) for dtype in ("float32", "float16")}
GPU = Needs(HOST, (7, 0), install=INSTALL)
CVCUDA = Needs((*HOST, "cvcuda"), (7, 0), install=INSTALL_VIDEO)
ON_THE_GPU = {"cuda": Contract((Limit("host_to_device_bytes", at_most=4096),))}
SAMPLED_FIRST = "a ninth of the pixels is sampled first, and only those are converted"

PREPROCESS = Workload(
    name="video/preprocess",
    baseline=by_opencv,
    inputs=batch_numbers,
    sizes={kind: size(kind) for kind in ITEMS},
    optimizations=(
        Optimization(
            "torch-gpu",
            partial(from_nv12, "torch"),
            {"sm_90": 10.0, "cuda": 2.0},
            tolerance=ROUNDED,
            needs=GPU,
            contract=ON_THE_GPU,
            why=SAMPLED_FIRST,
        ),
        Optimization(
            "cvcuda",
            partial(from_nv12, "cvcuda"),
            {"sm_90": 10.0, "cuda": 2.0},
            tolerance=ROUNDED_BY_CVCUDA,
            needs=CVCUDA,
            contract=ON_THE_GPU,
            why="an operator for each step, with all pixels converted before they are sampled",
        ),
        Optimization(
            "torch-cpu",
            partial(from_nv12, "torch"),
            {"cpu": 0.03},
            tolerance=ROUNDED,
            needs=ON_HOST,
            why=f"{SAMPLED_FIRST}; PyTorch still makes several passes over them, and OpenCV one",
        ),
    ),
    cold=False,  # the inputs are numbers of frames, which come from a bank in their turn
    timing="pipeline",
)

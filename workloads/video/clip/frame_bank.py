"""A bank of frames of the clip, decoded once, for stages that are measured without the stage before them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpugate.workload import Context
from workloads.parts.random_inputs import host_generator
from workloads.video.clip.clip import source
from workloads.video.clip.colour import rgb_from_nv12
from workloads.video.clip.video_file import Matrix, copy_as_nv12, planar_frames
from workloads.video.needs import BATCH

FRAMES: Mapping[str, int] = {"cuda": 48, "cpu": 24}  # by kind of device; 149 MB in NV12 at 1080p, more than fits in L2


def nv12_frames(context: Context) -> Tensor:
    """The first frames of the clip, whole batches of them: uint8 [n, H*3//2, W] on the context's device.

    Raises ValueError for a clip without a whole batch.
    """
    return _decoded(source(context).path, FRAMES[context.device.type]).to(context.device)


def bgr_frames(context: Context) -> NDArray[np.uint8]:
    """The frames of the bank in OpenCV's format: uint8 [n, H, W, 3] on the host."""
    clip = source(context)
    return _converted(clip.path, FRAMES[context.device.type], clip.info.matrix)


def one_thread_on_cpu(device: torch.device) -> None:
    """Limits PyTorch to one thread on a CPU, where it is the device: several threads would compete for shared cores."""
    if device.type == "cpu":
        torch.set_num_threads(1)


@functools.lru_cache(maxsize=2)
def _decoded(path: Path, frames: int) -> Tensor:
    shown = list(islice(planar_frames(path), frames))
    if len(shown) < BATCH:
        raise ValueError(f"{path} has {len(shown)} frames: give a video of {BATCH} or more")
    decoded = np.empty((len(shown), shown[0].height * 3 // 2, shown[0].width), np.uint8)
    for frame, nv12 in zip(shown, decoded, strict=True):
        copy_as_nv12(frame, nv12)
    return torch.from_numpy(decoded[: len(decoded) // BATCH * BATCH])


@functools.lru_cache(maxsize=2)
def _converted(path: Path, frames: int, matrix: Matrix) -> NDArray[np.uint8]:
    """Converts frame by frame, since the values between NV12 and RGB take several times as much memory."""
    each = (
        rgb_from_nv12(nv12[None], matrix)[0].flip(0).movedim(0, 2).contiguous().numpy()
        for nv12 in _decoded(path, frames)
    )
    return np.stack(list(islice(each, frames)))


def batch_numbers(context: Context, index: int) -> Tensor:
    """Input set `index`: int64 [items] on the host, consecutive frames of the bank from a random one on."""
    random = host_generator(context, index)
    frames = len(_decoded(source(context).path, FRAMES[context.device.type]))
    first = torch.randint(frames - context.items + 1, (1,), generator=random)
    return first + torch.arange(context.items)


def chosen(numbers: Tensor) -> slice:
    """The slice of the bank with these consecutive frames: gathering them would cost more than some stages."""
    first = int(numbers[0])
    return slice(first, first + len(numbers))

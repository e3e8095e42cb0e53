"""The sides of encoding: OpenCV's mp4v against libx264 in its own threads, nvJPEG and NVENC, with frames of the clip.

A step encodes some frames into a whole file. It returns float32 [frames, 2]: 1 for each frame that was taken, and 1
where the finished file has that number of frames, times the step's stamps. A proof checks the pictures of a file, and
its bit rate beside the baseline's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from gpugate.workload import Context, DeviceKind, Side, Size
from workloads.video.clip.colour import rgb_from_nv12
from workloads.video.clip.frame_bank import bgr_frames, nv12_frames
from workloads.video.clip.source_clip import CLIPS, source
from workloads.video.pipeline.chain import encoder_of
from workloads.video.pipeline.plan import BATCH, Plan
from workloads.video.pipeline.recorder import Recorder

# Per step, which is a whole file, since its end is a part of its cost.
ITEMS: Mapping[DeviceKind, int] = {"cuda": 64, "cpu": 24}


def size(kind: DeviceKind) -> Size:
    """Bytes: each frame read once, in NV12. An encoder's operations are no FLOPs."""
    clip = CLIPS[kind]
    return Size(items=ITEMS[kind], flops=0.0, bytes=float(ITEMS[kind] * clip.width * clip.height * 3 // 2))


def build(plan: Plan, context: Context) -> Side:
    """The side of the plan's encoder. Raises EncodingError or OSError where it is not available."""
    clip = source(context)
    make = partial(encoder_of, plan, info=clip.info, device=context.device)
    frames = frames_for(plan, context)
    recorder: Recorder[Any] = Recorder(make, plan.suffix, context.items, context.cache_dir)
    turns = cycle(range(0, len(frames), BATCH))

    def step(stamp: Tensor) -> Tensor:
        for first in islice(turns, context.items // BATCH):
            recorder.write(frames[first : first + BATCH])
        taken = torch.ones(context.items, 2, device=stamp.device)
        recorder.settle()
        taken[:, 1] = float(recorder.latest is not None and recorder.latest.frames == context.items)
        return taken * stamp[:, None]

    return Side(step, finish=recorder.settle, close=recorder.close)


def frames_for(plan: Plan, context: Context) -> Any:
    """The bank's frames in the form of the plan's encoder; frames of a device lie there."""
    if plan.encode == "mp4v":
        return bgr_frames(context)
    nv12 = nv12_frames(context)
    if plan.encode != "nvjpeg":
        return nv12
    matrix = source(context).info.matrix
    return torch.cat([rgb_from_nv12(frame[None], matrix) for frame in nv12])

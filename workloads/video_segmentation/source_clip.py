"""Which clip a workload runs on: the user's own video, or the generated one of that kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from gpugate.workload import Context, DeviceKind
from workloads.video_segmentation.clip import FULL, SMALL, Clip, clip_path
from workloads.video_segmentation.video_file import VideoInfo, examine

CLIPS: Mapping[DeviceKind, Clip] = {"cuda": FULL, "cpu": SMALL}


@dataclass(frozen=True)
class Source:
    """`numbered` says that every frame carries its number as a bar code."""

    info: VideoInfo
    numbered: bool

    @property
    def path(self) -> Path:
        return self.info.path


def source(context: Context, codec: Literal["h264", "hevc"] = "h264") -> Source:
    """The video of `--perf-input`, whatever its codec, where that is no folder; else the clip, made when first needed.

    Raises VideoError for a video that cannot be worked on and OSError where the clip cannot be written.
    """
    given = context.input_path
    if given is not None and not given.is_dir():
        return Source(examine(given), numbered=False)
    clip = replace(CLIPS[cast(DeviceKind, context.device.type)], codec=codec)
    return Source(examine(clip_path(context.cache_dir, clip)), numbered=True)

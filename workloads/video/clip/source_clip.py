"""The clip of a workload: the user's own video, or the generated clip of that kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from gpugate.workload import Context, DeviceKind
from workloads.video.clip.clip import FULL, SMALL, Clip, clip_path
from workloads.video.clip.video_file import VideoError, VideoInfo, examine

CLIPS: Mapping[DeviceKind, Clip] = {"cuda": FULL, "cpu": SMALL}
VIDEO_SETTING = {"video": "your own video"}
_told: set[str] = set()  # refusals of the user's video: every further case would repeat the sentence


@dataclass(frozen=True)
class Source:
    """A video; `numbered` is True where every frame carries its number as a bar code."""

    info: VideoInfo
    numbered: bool

    @property
    def path(self) -> Path:
        return self.info.path


def is_users(context: Context) -> bool:
    """True where the setting `video` names a video of the user."""
    return "video" in context.settings


def source(context: Context, codec: Literal["h264", "hevc"] = "h264") -> Source:
    """The user's video, whatever its codec, where there is one; else the clip, made at its first use.

    Raises VideoError for a video that is not supported, with the reason at the first time, and OSError where the clip
    cannot be written.
    """
    if is_users(context):
        return Source(_examined_once(Path(context.settings["video"])), numbered=False)
    clip = replace(CLIPS[cast(DeviceKind, context.device.type)], codec=codec)
    return Source(examine(clip_path(context.cache_dir, clip)), numbered=True)


def _examined_once(path: Path) -> VideoInfo:
    try:
        return examine(path)
    except VideoError as error:
        if str(error) in _told:
            raise VideoError(f"{path} was refused before, with the reason: name another --perf-set video=") from None
        _told.add(str(error))
        raise

"""The number of frames that a file announces where its container stores no count, only the end of the last frame."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING

import av

from workloads.video.frames import VideoInfo, exact

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

# FFmpeg's names of the containers whose header stores the duration; for others FFmpeg reports the end that it finds.
CONTAINERS = ("matroska,webm", "flv")
MICROSECOND = Fraction(1, 1_000_000)
UNCERTAIN_FRAMES = 1  # a whole file may announce an end up to one frame late
_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")


def announced_frames(info: VideoInfo) -> int:
    """Returns `info.frames`, or more where the file announces a later end: then the file was cut short.

    `info` must describe a file of constant frame rate; `examine` refuses all others.
    """
    with av.open(info.path.absolute()) as container:
        stream = container.streams.video[0]
        ends_s = _announced_end_s(container, stream)
        began_s = (stream.start_time or 0) * exact(stream.time_base or 0)
    if ends_s is None:
        return info.frames
    missing = math.floor((ends_s - began_s) * info.frames_per_second + Fraction(1, 2)) - info.frames
    return info.frames + (missing if missing > UNCERTAIN_FRAMES else 0)


def _announced_end_s(container: InputContainer, stream: VideoStream) -> Fraction | None:
    if container.format.name not in CONTAINERS or stream.frames:
        return None
    clock = _CLOCK.match(stream.metadata.get("DURATION", ""))
    if clock:
        hours, minutes, seconds = map(Fraction, clock.groups())
        return 3600 * hours + 60 * minutes + seconds
    # The container's own end is that of its longest stream.
    alone = len(container.streams.get()) == 1
    return container.duration * MICROSECOND if alone and container.duration else None

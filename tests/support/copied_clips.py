"""Clips as others make and leave them: in another container, cut short, with groups of pictures that are open."""

from pathlib import Path

import av
import numpy as np


def copied(source: Path, target: Path, **options: str) -> Path:
    """The same packets, in the container that the name of `target` says."""
    with av.open(source) as read, av.open(target, "w", options=options) as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for packet in read.demux(video=0):
            if packet.size:
                packet.stream = stream
                written.mux(packet)
    return target


def cut_short(source: Path, target: Path) -> Path:
    """With its table of contents in front, as a download has it, and its end missing."""
    whole = copied(source, target.with_name("whole.mp4"), movflags="faststart").read_bytes()
    target.write_bytes(whole[: len(whole) * 7 // 10])
    return target


def with_open_groups(path: Path) -> int:
    """Writes 25 frames, each lighter than the last; tells the number of the second keyframe, which earlier ones need.

    With such open groups of pictures, H.264 in MP4 has its parameter sets at the first keyframe alone.
    """
    with av.open(path, "w") as container:
        told = "open-gop=1:bframes=3:keyint=10:min-keyint=10:scenecut=0:log-level=-1"
        stream = container.add_stream("libx264", rate=30, options={"x264-params": told})
        stream.width, stream.height = 160, 96
        for number in range(25):
            rgb = np.full((96, 160, 3), 10 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(rgb, "rgb24")))
        container.mux(stream.encode(None))
    with av.open(path) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    second = next(packet.pts for packet in packets[1:] if packet.is_keyframe)
    return sorted(packet.pts for packet in packets).index(second)

"""Clips as others make and leave them: in another container, and cut short."""

from pathlib import Path

import av


def copied(source: Path, target: Path, **options: str) -> Path:
    """Writes the same packets, in the container that the name of `target` says."""
    with av.open(source) as read, av.open(target, "w", options=options) as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for packet in read.demux(video=0):
            if packet.size:
                packet.stream = stream
                written.mux(packet)
    return target


def cut_short(source: Path, target: Path) -> Path:
    """With its table of contents in front, as a download has it, and its end missing."""
    whole = copied(source, target.with_stem("whole"), movflags="faststart").read_bytes()
    target.write_bytes(whole[: len(whole) * 7 // 10])
    return target

"""The coded frames of a clip's segments as Annex B byte streams, for a decoder that has no demuxer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from workloads.video.clip.video_file import VideoError, VideoInfo, exact, open_video
from workloads.video.decode.sessions import Segment

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

START_CODE = b"\0\0\1"
# Annex B: the bitstream filter of a codec's packets, the start of a unit, and the parameter set units (H.264 table 7-1:
# SPS, PPS; H.265 table 7-1: VPS, SPS, PPS).
TO_ANNEX_B = {"h264": "h264_mp4toannexb", "hevc": "hevc_mp4toannexb"}
PARAMETER_SETS: dict[str, tuple[Callable[[int], int], frozenset[int]]] = {
    "h264": (lambda first_byte: first_byte & 31, frozenset({7, 8})),
    "hevc": (lambda first_byte: first_byte >> 1 & 63, frozenset({32, 33, 34})),
}


def parameter_sets(codec: str, annex_b: bytes) -> bytes:
    """The parameter sets among these units, each with its start code; empty for a packet without them."""
    kind_of, kinds = PARAMETER_SETS[codec]
    units = annex_b.split(START_CODE)[1:]
    return b"".join(START_CODE + unit for unit in units if unit and kind_of(unit[0]) in kinds)


@dataclass(frozen=True)
class CodedFrame:
    """A packet: one frame, its number in display order, as an Annex B byte stream."""

    number: int
    annex_b: bytes


class SegmentPackets:
    """Reads the packets of a clip's segments, in any order of segments.

    Raises VideoError for a codec other than H.264 and HEVC, and for a file without time stamps.
    """

    def __init__(self, info: VideoInfo) -> None:
        from av.bitstream import BitStreamFilterContext

        if info.codec not in TO_ANNEX_B:
            known = " and ".join(TO_ANNEX_B)
            raise VideoError(f"{info.path} is {info.codec}, and only {known} are split over sessions: take 1 session")
        self._info = info
        with ExitStack() as built:  # the file is closed where the rest cannot be
            self._open()
            built.callback(self.close)
            self._annex_b = BitStreamFilterContext(TO_ANNEX_B[info.codec], self._stream)
            self._sets = b"".join(parameter_sets(info.codec, packet.annex_b) for packet in self.read(Segment(0, 1)))
            built.pop_all()

    def read(self, segment: Segment) -> Iterator[CodedFrame]:
        """The packets of these frames in decoding order; fewer where the file ends before or is damaged.

        The first packet gets the clip's parameter sets if it has none: NVDEC starts at no frame without them.
        """
        import av

        begun = not segment.first  # a file may begin with undecodable packets: their frames will be missing
        with suppress(av.InvalidDataError):
            for packet in self._from(segment.first):
                number = self._number(packet)
                if number >= segment.stop:
                    return
                if not begun and (number != segment.first or not packet.is_keyframe):
                    continue
                coded = b"".join(bytes(each) for each in self._annex_b.filter(packet))
                if not begun and not parameter_sets(self._info.codec, coded):
                    coded = self._sets + coded
                begun = True
                yield CodedFrame(number, coded)

    def close(self) -> None:
        self._container.close()

    def _open(self) -> None:
        from av.stream import Disposition

        self._container = open_video(self._info.path)
        streams = self._container.streams.video
        self._stream: VideoStream = next(each for each in streams if not each.disposition & Disposition.attached_pic)
        ticks = exact(self._stream.time_base or 1)
        self._first_time, self._frames_per_tick = self._stream.start_time or 0, self._info.frames_per_second * ticks

    def _from(self, number: int) -> Iterator[Packet[VideoStream]]:
        """The packets from frame `number` on, or from some frame before it."""
        import av

        self._annex_b.flush()
        with suppress(av.FFmpegError):  # not every container can be searched, or finds the place
            self._container.seek(self._first_time + round(number / self._frames_per_tick), stream=self._stream)
            packets = self._demuxed()
            first = next(packets, None)
            if first is not None and self._number(first) <= number:
                return chain((first,), packets)
        self.close()
        self._open()
        return self._demuxed()

    def _demuxed(self) -> Iterator[Packet[VideoStream]]:
        return (packet for packet in self._container.demux(self._stream) if packet.size)

    def _number(self, packet: Packet[VideoStream]) -> int:
        if packet.pts is None:
            raise VideoError(f"{self._info.path} has no time stamps to split it by: take 1 session, or put it into MP4")
        return round((packet.pts - self._first_time) * self._frames_per_tick)

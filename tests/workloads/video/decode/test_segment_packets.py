"""The packets of a clip's segments, as NVDEC gets them."""

import dataclasses
from pathlib import Path
from typing import Any

import av
import pytest

from tests.support.copied_clips import copied, cut_short, with_open_groups
from workloads.video.clip import video_file
from workloads.video.clip.clip import Clip, clip_path
from workloads.video.clip.video_file import VideoError, examine
from workloads.video.decode import segment_packets
from workloads.video.decode.segment_packets import SegmentPackets, parameter_sets
from workloads.video.decode.sessions import Segment, segments

CLIP = Clip(160, 96, 75)  # keyframes at 0, 30 and 60
HEVC = dataclasses.replace(CLIP, codec="hevc")
SPS, PPS, IDR, OTHER = b"\0\0\1\x67sps", b"\0\0\1\x68pps", b"\0\0\1\x65idr", b"\0\0\1\x41p"


def test_parameter_sets_are_found_among_the_units_of_a_packet() -> None:
    access_unit_delimiter, information = b"\0\0\0\1\x09\xf0", b"\0\0\1\x06sei"
    assert parameter_sets("h264", access_unit_delimiter + SPS + PPS + information + IDR) == SPS + PPS
    assert parameter_sets("h264", IDR + OTHER) == b""
    video, sequence, picture, random_access = b"\0\0\1\x40v", b"\0\0\1\x42s", b"\0\0\1\x44p", b"\0\0\1\x2acra"
    assert parameter_sets("hevc", video + sequence + picture + random_access) == video + sequence + picture


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
@pytest.mark.parametrize("clip", [CLIP, HEVC], ids=["h264", "hevc"])
def test_every_segment_can_be_read_in_any_order(cache_dir: Path, tmp_path: Path, clip: Clip, suffix: str) -> None:
    info = examine(copied(clip_path(cache_dir, clip), tmp_path / f"clip{suffix}"))
    packets = SegmentPackets(info)
    first, second, third = segments(info)
    for segment in (first, third, second, second, first, third, third):
        coded = [*packets.read(segment)]
        assert coded[0].number == segment.first
        assert parameter_sets(info.codec, coded[0].annex_b)
        assert sorted(each.number for each in coded) == [*range(segment.first, segment.stop)]
        assert all(each.annex_b.startswith((b"\0\0\1", b"\0\0\0\1")) for each in coded)
    assert any(each.number != place for place, each in enumerate(packets.read(first))), "B-frames"
    packets.close()


def test_a_keyframe_without_parameter_sets_gets_those_of_the_clip(tmp_path: Path) -> None:
    path = tmp_path / "open.mp4"
    second = with_open_groups(path)
    packets = SegmentPackets(examine(path))
    sets = parameter_sets("h264", next(packets.read(Segment(0, 1))).annex_b)
    coded = [*packets.read(Segment(second, second + 3))]
    assert coded[0].number == second
    assert coded[0].annex_b.startswith(sets)
    assert coded[0].annex_b.count(sets) == 1
    assert coded[1].number < second
    assert not parameter_sets("h264", coded[1].annex_b)
    packets.close()


def test_a_file_that_ends_early_has_fewer_packets_and_no_error(cache_dir: Path, tmp_path: Path) -> None:
    info = examine(cut_short(clip_path(cache_dir, CLIP), tmp_path / "cut.mp4"))
    assert info.frames == 75
    packets = SegmentPackets(info)
    counts = [len([*packets.read(segment)]) for segment in (Segment(0, 30), Segment(30, 60), Segment(60, 75))]
    assert counts[0] == 30
    assert 10 < counts[1] < 30
    assert counts[2] == 0
    packets.close()


def test_a_title_need_not_be_utf8(cache_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "titled.mkv"
    with av.open(clip_path(cache_dir, CLIP)) as read, av.open(path, "w") as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        written.metadata["title"] = "A title"
        for packet in read.demux(video=0):
            if packet.size:
                packet.stream = stream
                written.mux(packet)
    path.write_bytes(path.read_bytes().replace(b"A title", b"A t\xeftre"))
    packets = SegmentPackets(examine(path))
    assert len([*packets.read(Segment(30, 60))]) == 30
    packets.close()


def test_packets_that_cannot_be_had_leave_no_file_open(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(
        segment_packets, "open_video", lambda path: opened.append(Closing(video_file.open_video(path))) or opened[-1]
    )

    def fails(codec: str, packet: bytes) -> None:
        raise ValueError("no units")

    monkeypatch.setattr(segment_packets, "parameter_sets", fails)
    with pytest.raises(ValueError, match="no units"):
        SegmentPackets(examine(clip_path(cache_dir, CLIP)))
    assert [each.closed for each in opened] == [True]


class Closing:
    """A container that tells whether it was closed."""

    def __init__(self, container: Any) -> None:
        self._container, self.closed = container, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    def close(self) -> None:
        self.closed = True
        self._container.close()


def test_what_cannot_be_split_is_told_in_a_sentence(cache_dir: Path, tmp_path: Path) -> None:
    raw = copied(clip_path(cache_dir, CLIP), tmp_path / "raw.h264")
    with pytest.raises(VideoError, match=r"raw.h264 has no time stamps to split it by: take 1 session"):
        SegmentPackets(examine(raw))
    with pytest.raises(VideoError, match=r"raw.h264 is mpeg4, and only h264 and hevc are split over sessions"):
        SegmentPackets(dataclasses.replace(examine(raw), codec="mpeg4"))

"""Videos appear whole or not at all: from packets of any encoder, on a full disk, and when the encoder breaks."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.full_disk import files_up_to
from workloads.video.clip import muxing
from workloads.video.clip.frame_number import paint, read_numbers
from workloads.video.clip.muxing import CodedTrack, Coding, replacing_video
from workloads.video.clip.partial_files import partial_file
from workloads.video.clip.video_file import VideoError, examine

av = pytest.importorskip("av", reason="PyAV writes videos: pip install av")

FRAMES = 24
JPEG = Coding("mjpeg", 160, 96, Fraction(30))


def frames(count: int = FRAMES) -> Iterator:
    random = np.random.default_rng(0)
    background = random.integers(0, 256, (96, 160, 3), np.uint8)
    for number in range(count):
        rgb = np.roll(background, number, 1)
        paint(rgb, number)
        frame = av.VideoFrame.from_ndarray(rgb, "rgb24")
        frame.pts, frame.time_base = number, Fraction(1, 30)
        yield frame


def jpegs(count: int = FRAMES) -> Iterator[bytes]:
    image = pytest.importorskip("PIL.Image")
    for frame in frames(count):
        file = io.BytesIO()
        image.fromarray(frame.to_ndarray()).save(file, "JPEG", quality=80)
        yield file.getvalue()


def packets_of(codec: str, options: dict[str, str]) -> list:
    """Encodes packets as a hardware encoder does: Annex B, parameter sets within, in the order of coding."""
    coder = av.CodecContext.create(codec, "w")
    coder.width, coder.height, coder.pix_fmt, coder.framerate = 160, 96, "yuv420p", Fraction(30)
    coder.time_base, coder.options = Fraction(1, 30), options
    return [
        packet for frame in [*frames(), None] for packet in coder.encode(frame and frame.reformat(format="yuv420p"))
    ]


def x264(container) -> None:
    stream = container.add_stream("libx264", rate=30, options={"x264-params": "threads=3"})
    stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
    for frame in frames():
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def mjpeg(container, count: int = FRAMES) -> None:
    track = CodedTrack(container, JPEG)
    for picture in jpegs(count):
        track.mux(picture)


def raising(error: BaseException) -> Callable:
    def work(container) -> None:
        raise error

    return work


def write(path: Path, *works: Callable) -> None:
    with replacing_video(path) as container:
        for work in works:
            work(container)


def numbers_in(path: Path) -> list[int]:
    with av.open(path) as container:
        luma = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    return read_numbers(torch.from_numpy(np.stack(luma))).tolist()


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".avi"])
def test_jpeg_pictures_make_a_whole_video(tmp_path: Path, suffix: str) -> None:
    path, pictures = tmp_path / f"a{suffix}", list(jpegs())
    with replacing_video(path) as container:
        track = CodedTrack(container, JPEG)
        for picture in pictures:
            track.mux(picture)
    assert (track.frames, track.bytes) == (FRAMES, sum(map(len, pictures)))
    assert numbers_in(path) == list(range(FRAMES))
    with av.open(path) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.width, stream.height) == ("mjpeg", 160, 96)
        assert float(stream.average_rate) == pytest.approx(30, rel=1e-3)
        packets = [packet for packet in container.demux(stream) if packet.size]
        assert [bytes(packet) for packet in packets] == pictures
        assert all(packet.is_keyframe for packet in packets)
        assert float(stream.duration * stream.time_base if stream.duration else container.duration / 1e6) == (
            pytest.approx(FRAMES / 30, abs=0.002)
        )


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("h264", {"x264-params": "keyint=10:bframes=0:scenecut=0:annexb=1"}),
        ("hevc", {"x265-params": "keyint=10:bframes=0:scenecut=0:annexb=1:log-level=error"}),
    ],
    ids=["h264", "hevc"],
)
def test_annex_b_packets_make_a_whole_video(tmp_path: Path, codec: str, options: dict[str, str], suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    encoder = {"h264": "libx264", "hevc": "libx265"}[codec]
    with replacing_video(path) as container:
        track = CodedTrack(container, Coding(codec, 160, 96, Fraction(30)))
        for packet in packets_of(encoder, options):
            track.mux(bytes(packet), is_keyframe=packet.is_keyframe)
    assert numbers_in(path) == list(range(FRAMES))
    info = examine(path)
    assert (info.codec, info.frames, info.frames_per_second, info.keyframes) == (codec, FRAMES, 30, (0, 10, 20))


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_pictures_coded_ahead_of_others_are_shown_in_order(tmp_path: Path, suffix: str) -> None:
    packets = packets_of("libx264", {"x264-params": "keyint=10:bframes=3:b-adapt=0:scenecut=0:open-gop=0"})
    shown = [packet.pts for packet in packets]
    assert shown != sorted(shown)
    path = tmp_path / f"a{suffix}"
    with replacing_video(path) as container:
        track = CodedTrack(container, Coding("h264", 160, 96, Fraction(30), reordered_frames=2))
        for packet in packets:
            track.mux(bytes(packet), packet.pts, packet.is_keyframe)
    assert numbers_in(path) == list(range(FRAMES))
    assert examine(path).frames == FRAMES
    with av.open(path) as container:
        assert [
            round(30 * packet.pts * packet.time_base) for packet in container.demux(video=0) if packet.size
        ] == shown


def test_what_was_there_stays_until_the_new_video_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"the old one")
    with pytest.raises(ArithmeticError, match="the encoder broke"):
        write(path, x264, raising(ArithmeticError("the encoder broke")))
    assert path.read_bytes() == b"the old one"
    assert list(tmp_path.iterdir()) == [path]
    write(path, x264)
    assert examine(path).frames == FRAMES


@pytest.mark.parametrize("error", [RuntimeError("a"), OSError(errno.EIO, "the camera"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 5])
def test_an_error_of_the_block_comes_out_as_it_is_and_nothing_stays(tmp_path: Path, error, after: int) -> None:
    with pytest.raises(type(error)) as raised:
        write(tmp_path / "a.mp4", partial(mjpeg, count=after), raising(error))
    assert raised.value is error
    assert list(tmp_path.iterdir()) == []


def test_a_video_without_a_frame_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match=r"a\.mp4 would be a video without a frame: check"):
        write(tmp_path / "a.mp4", partial(mjpeg, count=0))
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_one_sentence_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()
    for path, reason in (
        (tmp_path / "none" / "a.mp4", "No such file or directory"),
        (tmp_path / "file" / "a.mp4", "Not a directory"),
        (tmp_path / "folder.mp4", "Is a directory"),
        (tmp_path / ("a" * 300 + ".mp4"), "File name too long"),
    ):
        begun: list = []
        with pytest.raises(OSError, match=rf"cannot be written \({reason}\): name a file in a folder") as raised:
            write(path, begun.append)
        assert not begun
        assert str(raised.value).startswith(str(path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder.mp4"]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
@pytest.mark.parametrize("write_bytes", [4096, 2**20], ids=["while muxing", "in the trailer"])
def test_a_full_disk_is_one_sentence_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, write_bytes: int
) -> None:
    monkeypatch.setattr(muxing, "WRITE_BYTES", write_bytes)
    pictures, muxed = list(jpegs()), []
    assert sum(map(len, pictures)) > 60_000

    def work(container) -> None:
        track = CodedTrack(container, JPEG)
        for picture in pictures:
            track.mux(picture)
            muxed.append(picture)

    says = r"^\S+ cannot be written \(File too large\), \d+ MiB are free there: make room or choose another folder$"
    with files_up_to(20_000), pytest.raises(OSError, match=says):
        write(tmp_path / f"a{suffix}", work)
    assert list(tmp_path.iterdir()) == []
    assert (len(muxed) < FRAMES) == (write_bytes == 4096), "a full disk is seen while there is work left to save"


def test_what_a_killed_process_left_behind_goes_and_a_living_ones_stays(tmp_path: Path) -> None:
    path = tmp_path / "a[1].mp4"
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead, alive, own = int(child.stdout), 1, str(os.getpid())
    name = partial_file(path).name
    left_over = name.replace(own, str(dead))
    others = {name.replace(own, str(alive)), ".a[1].backup.mp4", left_over.replace("[1]", "1")}
    others.add(f".a[1].another0-{dead}.mp4")  # of a process of that number on a host that shares the folder
    for each in (left_over, *others):
        (tmp_path / each).touch()
    write(path, x264)
    assert {each.name for each in tmp_path.iterdir()} == {"a[1].mp4", *others}

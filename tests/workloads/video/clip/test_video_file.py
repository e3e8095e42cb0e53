"""Results of `examine` on videos, and its error for each kind of video that it refuses."""

from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.video.clip import video_file
from workloads.video.clip.video_file import VideoError, examine

av = pytest.importorskip("av", reason="PyAV reads videos: pip install av")

TICK = Fraction(1, 90_000)
FASTSTART = {"movflags": "faststart"}  # the index of the file comes first


def pictures(width: int, height: int, count: int, pixels: str = "yuv420p") -> Iterable:
    random = np.random.default_rng(0)
    for number in range(count):
        rgb = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb[:height, :width]), "rgb24").reformat(format=pixels)
        frame.pts, frame.time_base = number, Fraction(1, 30)
        yield frame


def make(
    path: Path,
    count: int = 12,
    size: tuple[int, int] = (160, 96),
    codec: str = "libx264",
    pixels: str = "yuv420p",
    times: Iterable[int] | None = None,  # in TICK
    rotation: float = 0,
    flip: bool = False,
    options: dict[str, str] | None = None,
    rate: Fraction | int = 30,
    tags: dict[str, Any] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    with av.open(path, "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        for name, value in (tags or {}).items():
            setattr(stream.codec_context, name, value)
        if rotation or flip:
            stream.set_display_rotation(rotation, hflip=flip)
        given = list(times) if times is not None else None
        if given is not None:
            stream.codec_context.time_base = TICK
        for number, frame in enumerate(pictures(*size, count, pixels)):
            frame.time_base = 1 / Fraction(rate)
            if given is not None:
                frame.pts, frame.time_base = given[number], TICK
            container.mux(stream.encode(frame))
        if count:
            container.mux(stream.encode(None))
        else:
            container.start_encoding()
    return path


def refused(path: Path) -> str:
    with pytest.raises(VideoError) as raised:
        examine(path)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message[len(str(path)) + 1 :]


def test_a_video_is_described(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", options={"x264-params": "keyint=5:scenecut=0"})
    info = examine(path)
    assert (info.path, info.width, info.height, info.frames, info.frames_missing) == (path, 160, 96, 12, 0)
    assert (info.frames_per_second, info.codec, info.matrix, info.keyframes) == (30, "h264", "bt601", (0, 5, 10))


NTSC = Fraction(30000, 1001)


@pytest.mark.parametrize(
    ("suffix", "rate"), [(".mp4", NTSC), (".mov", 60), (".mkv", NTSC), (".mkv", 25), (".ts", NTSC), (".avi", NTSC)]
)
def test_any_container_and_rate_will_do(tmp_path: Path, suffix: str, rate: Fraction) -> None:
    """Matroska counts milliseconds, so that no two gaps are the same; MPEG-TS announces no number of frames."""
    options = {"x264-params": "keyint=20:scenecut=0" + (":bframes=0" if suffix == ".avi" else "")}
    info = examine(make(tmp_path / f"a{suffix}", 50, rate=rate, options=options))
    assert (info.frames, info.keyframes) == (50, (0, 20, 40))
    assert float(info.frames_per_second) == pytest.approx(float(rate), rel=1e-4)


def test_the_matrix_is_the_tagged_one_and_else_bt601(tmp_path: Path) -> None:
    for tag, matrix in ((1, "bt709"), (2, "bt601"), (5, "bt601"), (6, "bt601")):
        assert examine(make(tmp_path / f"{tag}.mp4", 3, tags={"colorspace": tag})).matrix == matrix
    assert examine(make(tmp_path / "large.mp4", 1, size=(1920, 1080))).matrix == "bt601", "as swscale and OpenCV do"


def test_keyframes_of_open_groups_are_none_to_begin_at(tmp_path: Path) -> None:
    options = {"x264-params": "keyint=8:min-keyint=8:scenecut=0:open-gop=1:bframes=3:b-adapt=0"}
    path = make(tmp_path / "a.mkv", 30, options=options)
    with av.open(path) as container:
        keyframes = sum(packet.is_keyframe for packet in container.demux(video=0))
    assert keyframes > 1
    assert examine(path).keyframes == (0,)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a video, has no frames or was cut short (Invalid data found when processing input): name"),
        (b"some text\n" * 100, "is not a video, has no frames or was cut short"),
        (np.random.default_rng(0).bytes(50_000), "is not a video, has no frames or was cut short"),
    ],
    ids=["empty", "text", "noise"],
)
def test_what_is_no_video_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    assert refused(path).startswith(said)


def test_a_path_without_a_file_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.mp4") == "is not there: name a video file"
    assert refused(tmp_path) == "is no file: name a video file"


UNEVEN = [0, 3000, 6000, 10500, 13500, 15000, 18000, 27000, 30000, 33000]
INTERLACED = {"options": {"x264-params": "tff=1"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"count": 0}, "has no video stream, or one without a frame: name a file"),
    ({"count": 10, "times": UNEVEN}, "has a variable frame rate, 16.67 to 100 ms between frames: convert it, for"),
    ({"size": (161, 96), "codec": "mpeg4"}, "has 161x96 pixels, an odd number of columns: convert it"),
    ({"size": (160, 97), "codec": "mpeg4"}, "has 160x97 pixels, an odd number of rows: convert it"),
    ({"pixels": "yuv420p10le"}, "is yuv420p10le in limited range, not 8 bits, 4:2:0, limited range: convert it"),
    ({"pixels": "yuv444p"}, "is yuv444p in limited range, not 8 bits, 4:2:0, limited range: convert it"),
    ({"tags": {"color_range": 2}}, "is yuvj420p in full range, not 8 bits, 4:2:0, limited range: convert it"),
    ({"rotation": 90}, "is to be shown rotated or mirrored: convert it"),
    ({"flip": True, "codec": "mpeg4"}, "is to be shown rotated or mirrored: convert it"),
    ({"tags": {"sample_aspect_ratio": Fraction(16, 11)}}, "has pixels that are not square, 16:11: convert it"),
    (INTERLACED, "is interlaced, two half frames in one: convert it"),
]


@pytest.mark.parametrize(("kind", "said"), REFUSED)
def test_a_kind_of_video_that_no_stage_can_take_is_refused(tmp_path: Path, kind: dict[str, Any], said: str) -> None:
    assert refused(make(tmp_path / "a.mp4", **{"count": 6, **kind})).startswith(said)


@pytest.mark.parametrize(("suffix", "gap"), [(".mp4", 1), (".mp4", 20), (".mp4", 39), (".mkv", 1), (".mkv", 30)])
def test_one_frame_left_out_is_a_variable_frame_rate(tmp_path: Path, suffix: str, gap: int) -> None:
    """At the very end of a file that announces no number of frames it would be a file cut short."""
    times = [3000 * (number + (number >= gap)) for number in range(40)]
    assert "variable frame rate, 33" in refused(make(tmp_path / f"a{suffix}", 40, times=times))


def test_times_rounded_to_milliseconds_are_still_even(tmp_path: Path) -> None:
    """A copy from Matroska into MP4 keeps the rounding, with a finer unit of time."""
    times = [90 * round(number * 1000 / 30) for number in range(60)]
    assert float(examine(make(tmp_path / "a.mp4", 60, times=times)).frames_per_second) == pytest.approx(30, rel=1e-3)


def test_pixels_may_be_off_a_square_by_a_width_that_had_to_be_even(tmp_path: Path) -> None:
    assert examine(make(tmp_path / "a.mp4", 3, tags={"sample_aspect_ratio": Fraction(159, 160)})).width == 160


def joined(path: Path, parts: list[Path]) -> Path:
    """Their packets one after another in one MPEG-TS, as a broadcast would switch."""
    with av.open(path, "w", format="mpegts") as container:
        with av.open(parts[0]) as source:
            stream = container.add_mux_stream(source.streams.video[0].codec_context.name, rate=30, width=160, height=96)
        start = 0
        for part in parts:
            with av.open(part) as source:
                packets = [packet for packet in source.demux(video=0) if packet.size]
            for packet in packets:
                copy = av.Packet(bytes(packet))
                copy.stream, copy.time_base, copy.is_keyframe = stream, packet.time_base, packet.is_keyframe
                copy.pts, copy.dts = packet.pts + start, packet.dts + start
                container.mux(copy)
            start += 3000 * len(packets)
    return path


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_a_size_that_changes_in_the_middle_is_refused(tmp_path: Path, codec: str) -> None:
    options = {"x265-params": "log-level=error"} if codec == "libx265" else {}
    small = make(tmp_path / "small.ts", 6, codec=codec, options=options)
    large = make(tmp_path / "large.ts", 6, size=(320, 192), codec=codec, options=options)
    assert examine(joined(tmp_path / "same.ts", [small, small])).frames == 12
    said = refused(joined(tmp_path / "a.ts", [small, large, small]))
    assert said.startswith("changes from 160x96 yuv420p to 320x192 yuv420p in the middle: convert it")


def cut(path: Path, share: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: round(len(content) * share)])
    return path


def test_a_file_cut_short_tells_what_is_missing_where_its_index_comes_first(tmp_path: Path) -> None:
    info = examine(cut(make(tmp_path / "a.mp4", 40, container_options=FASTSTART), 0.5))
    assert info.frames == 40
    assert 10 < info.frames_missing < 30
    assert info.frames_per_second == 30


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts", ".avi"])
def test_a_damaged_file_is_refused_or_described(tmp_path: Path, suffix: str) -> None:
    whole = make(tmp_path / f"a{suffix}").read_bytes()
    path = tmp_path / f"damaged{suffix}"
    random = np.random.default_rng(0)
    for _ in range(25):
        content = bytearray(whole)
        for place in random.integers(0, len(whole), 40):
            content[place] = random.integers(256)
        path.write_bytes(content)
        with suppress(VideoError):
            assert examine(path).frames >= 1


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, whole = [], video_file._read
    monkeypatch.setattr(video_file, "_read", lambda path: read.append(path) or whole(path))
    path = make(tmp_path / "a.mp4")
    assert examine(path) is examine(path)
    assert len(read) == 1
    path.write_bytes(b"no video at all" * 100)
    said = []
    for _ in range(2):
        with pytest.raises(VideoError, match=r"a\.mp4 is not a video") as raised:
            examine(path)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert len(read) == 2, "a refusal is remembered too"
    make(path, count=5)
    assert examine(path).frames == 5

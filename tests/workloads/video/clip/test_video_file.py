"""Results of `examine` on videos, and its error for each kind of video that it refuses."""

from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.full_disk import files_up_to
from workloads.video.clip.video_file import VideoError, examine, replacing_video

av = pytest.importorskip("av", reason="PyAV reads videos: pip install av")

TICK = Fraction(1, 90_000)


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
    assert (info.path, info.width, info.height, info.frames) == (path, 160, 96, 12)
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


UNEVEN = [0, 3000, 7500, *range(9000, 60000, 3000)]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"count": 0}, "has no video stream that FFmpeg can decode: name a file"),
    ({"count": 20, "times": UNEVEN}, "has a variable frame rate: convert it, for"),
    ({"size": (161, 96), "codec": "mpeg4"}, "has 161x96 pixels, an odd number of columns: convert it"),
    ({"size": (160, 97), "codec": "mpeg4"}, "has 160x97 pixels, an odd number of rows: convert it"),
    ({"pixels": "yuv420p10le"}, "is yuv420p10le in limited range, not 8 bits, 4:2:0, limited range: convert it"),
    ({"pixels": "yuv444p"}, "is yuv444p in limited range, not 8 bits, 4:2:0, limited range: convert it"),
    ({"tags": {"color_range": 2}}, "is yuvj420p in full range, not 8 bits, 4:2:0, limited range: convert it"),
]


@pytest.mark.parametrize(("kind", "said"), REFUSED)
def test_a_kind_of_video_that_no_stage_can_take_is_refused(tmp_path: Path, kind: dict[str, Any], said: str) -> None:
    assert refused(make(tmp_path / "a.mp4", **{"count": 6, **kind})).startswith(said)


def cut(path: Path, share: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: round(len(content) * share)])
    return path


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


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4")
    assert examine(path) is examine(path)
    make(path, count=5)
    assert examine(path).frames == 5


# --- files that appear whole or not at all ----------------------------------------------------------------------------


def write(path: Path, count: int, size: tuple[int, int] = (160, 96)) -> None:
    with replacing_video(path) as container:
        stream = container.add_stream("mjpeg", rate=30)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p"
        for frame in pictures(*size, count, "yuvj420p"):
            container.mux(stream.encode(frame))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none/a.mp4", "No such file or directory"),
        ("file/a.mp4", "Not a directory"),
        ("a" * 300 + ".mp4", "File name too long"),
    ],
)
def test_a_path_that_cannot_be_written_is_one_sentence(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=rf"^\S+ cannot be written \({reason}\): name a file in a folder"):
        write(tmp_path / name, 1)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
@pytest.mark.parametrize("frames", [24, 240])
def test_a_full_disk_is_one_sentence_and_nothing_stays(tmp_path: Path, suffix: str, frames: int) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"of yesterday")
    with files_up_to(20_000), pytest.raises(OSError, match=r"^\S+ cannot be written \(File too large\): make room or"):
        write(path, frames)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"of yesterday"]

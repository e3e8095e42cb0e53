"""Results of `examine` on videos, and its error for each kind of video that it refuses."""

import platform
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from tests.support.full_disk import files_up_to
from workloads.video.arrivals import psnr_db
from workloads.video.decode import HostDecoder, HostPlanesDecoder
from workloads.video.frames import (
    LOST_LEVELS,
    Matrix,
    VideoError,
    examine,
    nv12_from_rgb,
    planes,
    replacing_video,
    rgb_from_nv12,
)

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
) -> Path:
    with av.open(path, "w") as container:
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


NTSC = Fraction(30000, 1001)


@pytest.mark.parametrize(
    ("suffix", "rate"), [(".mp4", NTSC), (".mov", 60), (".mkv", NTSC), (".ts", 25), (".avi", NTSC)]
)
def test_a_video_of_any_container_and_rate_is_described(tmp_path: Path, suffix: str, rate: Fraction) -> None:
    """Matroska counts milliseconds, so that no two gaps are the same; MPEG-TS announces no number of frames."""
    options = {"x264-params": "keyint=20:scenecut=0" + (":bframes=0" if suffix == ".avi" else "")}
    info = examine(make(tmp_path / f"a{suffix}", 50, rate=rate, options=options))
    assert (info.width, info.height, info.frames, info.keyframes) == (160, 96, 50, (0, 20, 40))
    assert info.matrix == "bt601"
    assert float(info.frames_per_second) == pytest.approx(float(rate), rel=1e-4)


UNEVEN = [0, 3000, 7500, *range(9000, 60000, 3000)]
NO_VIDEO = "is not there, or no video"
REFUSED: list[tuple[dict[str, Any] | Callable[[Path], object], str]] = [
    (lambda path: None, f"{NO_VIDEO} (No such file or directory): name another file"),
    (Path.mkdir, NO_VIDEO),
    (Path.touch, NO_VIDEO),
    (lambda path: path.write_bytes(b"some text\n" * 100), NO_VIDEO),
    ({"count": 0}, "has no video of a known frame rate: name another file"),
    ({"count": 20, "times": UNEVEN}, "has a variable frame rate: convert it, for"),
    ({"size": (161, 96), "codec": "mpeg4"}, "has an odd side, of 161x96 pixels: convert it"),
    ({"size": (160, 97), "codec": "mpeg4"}, "has an odd side, of 160x97 pixels: convert it"),
    ({"pixels": "yuv420p10le"}, "has pixels of yuv420p10le, not 8 bits deep, 4:2:0: convert it"),
    ({"pixels": "yuv444p"}, "has pixels of yuv444p, not 8 bits deep, 4:2:0: convert it"),
    ({"tags": {"color_range": 2}}, "has pixels of yuvj420p, not 8 bits deep, 4:2:0: convert it"),
    ({"tags": {"colorspace": 9}}, "has colours of matrix 9, not BT.601 or BT.709: convert it"),
]


@pytest.mark.parametrize(("kind", "said"), REFUSED)
def test_what_no_stage_can_take_is_refused_in_one_sentence(
    tmp_path: Path, kind: dict[str, Any] | Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "a.mp4"
    if callable(kind):
        kind(path)
    else:
        make(path, **{"count": 6, **kind})
    with pytest.raises(VideoError, match=f"^{re.escape(f'{path} {said}')}") as raised:
        examine(path)
    assert "\n" not in str(raised.value)


# --- files that appear whole or not at all ----------------------------------------------------------------------------


def write(path: Path, count: int, size: tuple[int, int] = (160, 96)) -> None:
    with replacing_video(path) as container:
        stream = container.add_stream("mjpeg", rate=30)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p"
        for frame in pictures(*size, count, "yuvj420p"):
            container.mux(stream.encode(frame))


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
@pytest.mark.parametrize("frames", [24, 240])
def test_a_full_disk_is_an_error_and_nothing_stays(tmp_path: Path, suffix: str, frames: int) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"of yesterday")
    with files_up_to(20_000), pytest.raises(OSError, match="File too large"):
        write(path, frames)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"of yesterday"]


# --- NV12 to RGB and back, held against swscale through OpenCV's decoder ----------------------------------------------

WIDTH, HEIGHT, FRAMES = 162, 98, 6  # no multiple of what swscale works on at a time
UNTAGGED, BT709, BT601 = 2, 1, 6


@pytest.mark.parametrize(("tag", "matrix"), [(BT601, "bt601"), (BT709, "bt709"), (UNTAGGED, "bt601")])
def test_a_clip_decoded_to_nv12_gets_the_colours_that_opencv_shows(tmp_path: Path, tag: int, matrix: str) -> None:
    path = make(tmp_path / "a.mp4", FRAMES, (WIDTH, HEIGHT), tags={"colorspace": tag})
    with closing(HostPlanesDecoder(path)) as decoder, closing(HostDecoder(path)) as opencv:
        nv12, bgr = decoder.read(FRAMES), opencv.read(FRAMES)
    ours, theirs = rgb_from_nv12(nv12, matrix), torch.from_numpy(bgr).flip(-1).permute(0, 3, 1, 2)
    assert ours.shape == theirs.shape == (FRAMES, 3, HEIGHT, WIDTH)
    assert ours.dtype == torch.uint8
    if platform.machine() == "x86_64":
        assert torch.equal(ours, theirs)
    assert psnr_db(ours.numpy(), theirs.numpy()) >= 45
    other = {"bt601": "bt709", "bt709": "bt601"}[matrix]
    assert psnr_db(rgb_from_nv12(nv12, other).numpy(), theirs.numpy()) < 42, "the matrix matters"


@pytest.mark.parametrize("matrix", ["bt601", "bt709"])
def test_nv12_comes_back_as_light_as_it_was(matrix: Matrix) -> None:
    """Rounding down makes RGB darker; who makes NV12 of it again gives that back."""
    random = torch.Generator().manual_seed(3)
    nv12 = torch.randint(90, 160, (2, 96, 64), generator=random, dtype=torch.uint8)
    rgb = rgb_from_nv12(nv12, matrix)
    assert rgb.amin() > 0
    assert rgb.amax() < 255  # nothing was clipped
    wanted = planes(nv12)[0].float().mean()
    assert abs(planes(nv12_from_rgb(rgb, matrix, LOST_LEVELS[matrix]))[0].float().mean() - wanted) < 0.1
    assert planes(nv12_from_rgb(rgb, matrix))[0].float().mean() - wanted < -0.8

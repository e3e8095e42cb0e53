"""Every encoder on a CPU: each frame in order at its quality, or an error that leaves what was there before."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchvision")
pytest.importorskip("cv2")
pytest.importorskip("av")
import av

from workloads.video.clip.video_file import VideoError
from workloads.video.encode.encoding import Encoded, EncodingError, VideoFormat
from workloads.video.encode.motion_jpeg import MotionJpeg
from workloads.video.encode.on_cpu import X264, Mp4v, X264Settings
from workloads.video.encode.quality import quality

pytestmark = pytest.mark.usefixtures("no_thread_stays")
VIDEO = VideoFormat(160, 96, Fraction(25))
ENCODERS: dict[str, Callable[[Path], Any]] = {  # by the name of the codec
    "mpeg4": lambda path: Mp4v(path, VIDEO),
    "h264": lambda path: X264(path, VIDEO, X264Settings(crf=18)),
    "mjpeg": lambda path: MotionJpeg(path, VIDEO),
}
NV12 = "nv12"


@pytest.fixture
def clip(bgr, nv12, rgb) -> dict[str, Any]:
    """The frames in the form that each encoder takes."""
    return {NV12: nv12.numpy(), "mpeg4": np.ascontiguousarray(bgr), "h264": nv12, "mjpeg": rgb}


@pytest.fixture(params=ENCODERS)
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [*(("mpeg4", suffix) for suffix in (".mp4", ".avi")), ("h264", ".mp4")]
    + [("mjpeg", suffix) for suffix in (".mp4", ".mov", ".avi")],
)
def test_every_frame_comes_back_in_order_at_its_quality_and_rate(tmp_path, clip, codec, suffix):
    path, frames = tmp_path / f"out{suffix}", clip[codec]
    path.write_bytes(b"of yesterday")
    with ENCODERS[codec](path) as encoder:
        encoder.write(frames[:5])
        encoder.write(frames[5:5])
        encoder.write(frames[5:])

    encoded = encoder.close()
    assert encoded == Encoded(path, 12, path.stat().st_size, 12 / 25)
    assert encoded.bit_rate_mbit_s == pytest.approx(8e-6 * path.stat().st_size * 25 / 12)
    found = quality(path, dict(enumerate(clip[NV12])), "nv12")
    assert found.numbers == tuple(range(12))
    assert found.frames == 12
    assert min(found.psnr_db.values()) > 35
    assert found.bit_rate_mbit_s == pytest.approx(encoded.bit_rate_mbit_s)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(EncodingError, match="closed: open another"):
        encoder.write(frames)
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == codec


def test_an_error_of_the_caller_aborts_and_leaves_what_was_there_before(tmp_path, clip, codec):
    path = tmp_path / "out.mp4"
    path.write_bytes(b"of yesterday")
    encoder = ENCODERS[codec](path)

    def fail() -> None:
        with encoder:
            encoder.write(clip[codec])
            raise ArithmeticError("of the caller")

    with pytest.raises(ArithmeticError, match="of the caller"):
        fail()
    encoder.abort()
    with pytest.raises(EncodingError, match="aborted"):
        encoder.close()
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"of yesterday"]


def test_no_frames_make_no_video(tmp_path, codec):
    encoder = ENCODERS[codec](tmp_path / "out.mp4")
    with pytest.raises((EncodingError, VideoError), match="without a frame"):
        encoder.close()
    assert not list(tmp_path.iterdir())

"""The baseline encoder: all frames, or an error and nothing, although OpenCV tells of none."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("av")

from tests.support.full_disk import files_up_to
from workloads.video.encode.encoding import EncodingError, VideoFormat
from workloads.video.encode.on_cpu import Mp4v

VIDEO = VideoFormat(160, 96, Fraction(25))


def test_a_full_disk_that_nobody_told_of_comes_out_and_leaves_nothing(tmp_path, capfd):
    noise = np.random.default_rng(0).integers(0, 256, (24, 96, 160, 3), dtype=np.uint8)
    encoder = Mp4v(tmp_path / "out.mp4", VIDEO)
    with files_up_to(2**15):
        encoder.write(noise)
        for _ in range(2):
            with pytest.raises(EncodingError, match=rf"out\.mp4 came out with 0 of 24 frames: make room in {tmp_path}"):
                encoder.close()
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().err == "", "OpenCV and FFmpeg write nothing beside our sentence"


def test_frames_that_do_not_fit_are_refused_where_opencv_would_drop_them(tmp_path, bgr):
    encoder = Mp4v(tmp_path / "out.mp4", VIDEO)
    with pytest.raises(EncodingError, match=r"uint8 \[12, 96, 80, 3\]: give uint8 \[n, 96, 160, 3\]"):
        encoder.write(bgr[:, :, :80])
    with pytest.raises(EncodingError, match="float32"):
        encoder.write(bgr.astype(np.float32))
    encoder.write(bgr)
    assert encoder.close().frames == 12

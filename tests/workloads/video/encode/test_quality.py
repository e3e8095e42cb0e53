"""Quality figures of encoded files with known differences, colours and losses."""

from __future__ import annotations

from fractions import Fraction

import pytest

pytest.importorskip("av")

from workloads.video.clip.colour import nv12_from_rgb
from workloads.video.encode.encoding import VideoFormat
from workloads.video.encode.on_cpu import X264, X264Settings
from workloads.video.encode.quality import quality

NEARLY_LOSSLESS = X264Settings(crf=1)


def test_lost_and_swapped_frames_are_seen(tmp_path, rgb):
    path = tmp_path / "out.mp4"
    nv12 = nv12_from_rgb(rgb[[0, 1, 3, 2, 4, 6]], "bt601")
    with X264(path, VideoFormat(160, 96, Fraction(25)), NEARLY_LOSSLESS) as encoder:
        encoder.write(nv12)
    found = quality(path, dict(enumerate(nv12_from_rgb(rgb, "bt601").numpy())), "nv12")
    assert found.frames == 6
    assert found.numbers == (0, 1, 3, 2, 4, 6)
    assert min(found.psnr_db[0], found.psnr_db[1], found.psnr_db[4]) > 42
    assert max(found.psnr_db[2], found.psnr_db[3], found.psnr_db[5]) < 35
    some = quality(path, {0: nv12.numpy()[0], 5: nv12.numpy()[5], 9: nv12.numpy()[0]}, "nv12", numbered=False)
    assert [*some.psnr_db] == [0, 5]
    assert min(some.psnr_db.values()) > 42
    assert some.numbers == ()

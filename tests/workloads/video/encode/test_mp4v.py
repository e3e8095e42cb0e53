"""The baseline encoder: all frames, or an error and nothing, although OpenCV tells of none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("cv2")
pytest.importorskip("av")
import av

from tests.support.full_disk import files_up_to
from workloads.video.clip.clip import Clip, rendered
from workloads.video.clip.colour import nv12_from_rgb
from workloads.video.encode.encoding import Encoded, EncodingError, VideoFormat
from workloads.video.encode.mp4v import Mp4v
from workloads.video.encode.quality import quality

CLIP = Clip(160, 96, 12)
VIDEO = VideoFormat(CLIP.width, CLIP.height, Fraction(25))


@pytest.fixture(scope="module")
def bgr() -> NDArray[np.uint8]:
    """uint8 [12, 96, 160, 3]: the clip."""
    return np.stack([rendered(CLIP, number)[0][:, :, ::-1] for number in range(CLIP.frames)])


@pytest.fixture(scope="module")
def nv12(bgr) -> NDArray[np.uint8]:
    """uint8 [12, 144, 160]: what an encoder of 4:2:0 can keep of them."""
    rgb = torch.from_numpy(bgr[:, :, :, ::-1].copy()).permute(0, 3, 1, 2).contiguous()
    return nv12_from_rgb(rgb, "bt601").numpy()


@pytest.mark.parametrize("suffix", [".mp4", ".avi"])
def test_every_frame_comes_back_in_order_at_its_quality_and_rate(tmp_path, bgr, nv12, suffix):
    path = tmp_path / f"out{suffix}"
    with Mp4v(path, VIDEO) as encoder:
        encoder.write(bgr[:5])
        encoder.write(bgr[5:5])
        encoder.write(bgr[5:])

    assert encoder.close() == Encoded(path, 12, path.stat().st_size, 12 / 25)
    found = quality(path, dict(enumerate(nv12)), "nv12")
    assert found.numbers == tuple(range(12))
    assert found.frames == 12
    assert min(found.psnr_db.values()) > 35
    assert found.bit_rate_mbit_s == pytest.approx(encoder.close().bit_rate_mbit_s)
    assert list(tmp_path.iterdir()) == [path]
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "mpeg4"


def test_a_full_disk_is_seen_with_the_batch_that_filled_it(tmp_path, bgr, monkeypatch):
    encoder = Mp4v(tmp_path / "out.mp4", VIDEO)
    encoder.write(bgr)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=2**30, free=2**12))
    says = r"out\.mp4 cannot be written \(No space left on device\), 0 MiB are free there: make room or choose another"
    for again in (lambda: encoder.write(bgr), lambda: encoder.write(bgr), encoder.close):
        with pytest.raises(OSError, match=says):
            again()
    assert not list(tmp_path.iterdir())


def test_a_disk_that_does_not_tell_its_size_is_not_full(tmp_path, bgr, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=0, free=0))
    with Mp4v(tmp_path / "out.mp4", VIDEO) as encoder:
        encoder.write(bgr)
    assert encoder.close().frames == 12


def test_what_a_killed_process_left_behind_goes(tmp_path, bgr):
    path = tmp_path / "out.mp4"
    made = f"from pathlib import Path; import numpy as np; from {Mp4v.__module__} import *; import os, signal;"
    made += f"encoder = Mp4v(Path({str(path)!r}), VideoFormat(160, 96)); os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run([sys.executable, "-c", made], cwd=Path(__file__).parents[4], check=False)
    assert len(list(tmp_path.iterdir())) == 1, "a partial file"
    with Mp4v(path, VIDEO) as encoder:
        encoder.write(bgr)
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_that_nobody_told_of_comes_out_and_leaves_nothing(tmp_path, capfd):
    noise = np.random.default_rng(0).integers(0, 256, (24, 96, 160, 3), dtype=np.uint8)
    encoder = Mp4v(tmp_path / "out.mp4", VIDEO)
    with files_up_to(2**15):
        encoder.write(noise)
        for _ in range(2):
            with pytest.raises(
                EncodingError, match=rf"out\.mp4 came out with 0 of 24 frames, \d+ MiB .*: make room in {tmp_path}"
            ):
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


def test_aborting_leaves_what_was_there_before(tmp_path, bgr):
    path = tmp_path / "out.mp4"
    path.write_bytes(b"of yesterday")
    encoder = Mp4v(path, VIDEO)
    encoder.write(bgr)
    encoder.abort()
    encoder.abort()
    with pytest.raises(EncodingError, match="aborted"):
        encoder.close()
    with pytest.raises(EncodingError, match="closed: open another"):
        encoder.write(bgr)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"of yesterday"]


def test_a_complete_file_replaces_what_was_there_and_stays(tmp_path, bgr):
    path = tmp_path / "out.mp4"
    path.write_bytes(b"of yesterday")
    with Mp4v(path, VIDEO) as encoder:
        encoder.write(bgr)
    encoder.abort()
    assert encoder.close().frames == quality(path, {}, "nv12").frames == 12


def test_no_frames_make_no_video(tmp_path):
    encoder = Mp4v(tmp_path / "out.mp4", VIDEO)
    with pytest.raises(EncodingError, match="without a frame"):
        encoder.close()
    assert not list(tmp_path.iterdir())


def test_paths_that_cannot_be_written_are_known_before_the_first_frame(tmp_path):
    with pytest.raises(OSError, match=r"out\.mp4 cannot be written \(No such file or directory\): name a file"):
        Mp4v(tmp_path / "nowhere" / "out.mp4", VIDEO)
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(OSError, match=r"folder\.mp4 cannot be written \(Is a directory\)"):
        Mp4v(tmp_path / "folder.mp4", VIDEO)
    with pytest.raises(EncodingError, match=r"out\.mkv is no name"):
        Mp4v(tmp_path / "out.mkv", VIDEO)
    assert [each.name for each in tmp_path.iterdir()] == ["folder.mp4"]

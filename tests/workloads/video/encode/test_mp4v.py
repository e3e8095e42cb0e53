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
from numpy.typing import NDArray

pytest.importorskip("cv2")
pytest.importorskip("av")

from tests.support.full_disk import files_up_to
from workloads.video.clip.clip import Clip, rendered
from workloads.video.encode.encoding import EncodingError, VideoFormat
from workloads.video.encode.mp4v import Mp4v

CLIP = Clip(160, 96, 12)
VIDEO = VideoFormat(CLIP.width, CLIP.height, Fraction(25))


@pytest.fixture(scope="module")
def bgr() -> NDArray[np.uint8]:
    """uint8 [12, 96, 160, 3]: the clip."""
    return np.stack([rendered(CLIP, number)[0][:, :, ::-1] for number in range(CLIP.frames)])


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


def test_paths_that_cannot_be_written_are_known_before_the_first_frame(tmp_path):
    with pytest.raises(OSError, match=r"out\.mp4 cannot be written \(No such file or directory\): name a file"):
        Mp4v(tmp_path / "nowhere" / "out.mp4", VIDEO)
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(OSError, match=r"folder\.mp4 cannot be written \(Is a directory\)"):
        Mp4v(tmp_path / "folder.mp4", VIDEO)
    with pytest.raises(EncodingError, match=r"out\.mkv is no name"):
        Mp4v(tmp_path / "out.mkv", VIDEO)
    assert [each.name for each in tmp_path.iterdir()] == ["folder.mp4"]

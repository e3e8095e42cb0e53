"""Recorded files: one after the other, each of a whole clip, and none stays behind."""

import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.patience import HANGS_S
from workloads.video.encode.encoding import Encoded, EncodingError, VideoFormat
from workloads.video.encode.mp4v import Mp4v
from workloads.video.pipeline.recorder import Recorder

Frames = NDArray[np.uint8]
VIDEO = VideoFormat(96, 64)


def batch(frames: int) -> Frames:
    return np.random.default_rng(frames).integers(0, 255, (frames, 64, 96, 3), np.uint8)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder[Frames]:
    return Recorder(lambda path: Mp4v(path, VIDEO), ".mp4", 12, tmp_path)


def test_a_file_has_the_frames_of_one_clip(recorder: Recorder[Frames], tmp_path: Path) -> None:
    found: list[Encoded | None] = []
    for _ in range(5):
        recorder.write(batch(6))
        recorder.settle()
        found.append(recorder.latest)
    assert [each and each.frames for each in found] == [None, 12, 12, 12, 12]
    assert found[1] is not found[3]
    assert [each and each.path.exists() for each in found[1::2]] == [False, True]
    recorder.close()
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_batches_that_do_not_fit_end_a_file_late(recorder: Recorder[Frames]) -> None:
    for _ in range(3):
        recorder.write(batch(5))
    recorder.settle()
    assert recorder.latest is not None
    assert recorder.latest.frames == 15
    recorder.close()


def test_a_file_is_closed_beside_the_next_one(tmp_path: Path) -> None:
    may_close = threading.Event()

    class SlowToClose(Mp4v):
        def close(self) -> Encoded:
            assert may_close.wait(HANGS_S)
            return super().close()

    recorder: Recorder[Frames] = Recorder(lambda path: SlowToClose(path, VIDEO), ".mp4", 4, tmp_path)
    recorder.write(batch(4))
    recorder.write(batch(2))
    assert recorder.latest is None
    may_close.set()
    recorder.settle()
    assert recorder.latest is not None
    assert recorder.latest.frames == 4
    recorder.close()


@pytest.fixture
def failing(tmp_path: Path) -> Recorder[Frames]:
    class FullDisk(Mp4v):
        def close(self) -> Encoded:
            self.abort()
            raise OSError("the disk is full")

    return Recorder(lambda path: FullDisk(path, VIDEO), ".mp4", 4, tmp_path)


def test_what_closing_raises_comes_out_of_the_next_settle(failing: Recorder[Frames], tmp_path: Path) -> None:
    failing.write(batch(4))
    with pytest.raises(OSError, match="the disk is full"):
        failing.settle()
    failing.close()
    assert list(tmp_path.iterdir()) == []


def test_or_of_the_write_that_ends_the_next_file(failing: Recorder[Frames], tmp_path: Path) -> None:
    failing.write(batch(4))
    failing.write(batch(2))
    with pytest.raises(OSError, match="the disk is full"):
        failing.write(batch(2))
    failing.write(batch(2))  # into another file
    failing.close()
    assert list(tmp_path.iterdir()) == []


def test_what_an_encoder_refuses_is_raised_and_nothing_stays(recorder: Recorder[Frames], tmp_path: Path) -> None:
    with pytest.raises(EncodingError, match="frames are uint8"):
        recorder.write(batch(2)[:, :32])
    recorder.close()
    assert list(tmp_path.iterdir()) == []

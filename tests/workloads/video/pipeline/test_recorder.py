"""Recorded files are closed beside the next one, and an error of closing comes out."""

import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.patience import HANGS_S
from workloads.video.encode.encoding import Encoded, VideoFormat
from workloads.video.encode.on_cpu import Mp4v
from workloads.video.pipeline.flow import Recorder

Frames = NDArray[np.uint8]
VIDEO = VideoFormat(96, 64)


def batch(frames: int) -> Frames:
    return np.random.default_rng(frames).integers(0, 255, (frames, 64, 96, 3), np.uint8)


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

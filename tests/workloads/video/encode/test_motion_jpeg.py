"""Motion-JPEG, as far as a CPU goes: libjpeg stands for nvJPEG, everything around it is the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("av")
import av

from tests.support.libjpeg import jpeg
from tests.support.patience import HANGS_S
from workloads.video.encode import motion_jpeg as motion_jpeg_module
from workloads.video.encode.encoding import EncodingError, PendingFrames, VideoFormat
from workloads.video.encode.motion_jpeg import MotionJpeg
from workloads.video.encode.quality import decoded, quality

pytestmark = pytest.mark.usefixtures("no_thread_stays")
VIDEO = VideoFormat(160, 96, Fraction(25))


def test_a_player_shows_the_colours_that_were_given(tmp_path):
    """Flat ones, which 4:2:0 keeps, from one end of the range to the other; each frame is a keyframe."""
    colours = torch.tensor([(0, 0, 0), (255, 255, 255), (200, 30, 60), (20, 180, 240)], dtype=torch.uint8)
    path = tmp_path / "out.mp4"
    with MotionJpeg(path, VIDEO) as encoder:
        encoder.write(colours[:, :, None, None].expand(-1, -1, 96, 160).contiguous())

    shown = np.stack(list(decoded(path, "rgb24")))
    assert np.abs(shown.astype(int) - colours[:, None, None, :].numpy()).max() <= 3
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        assert stream.codec_context.name == "mjpeg"
        assert all(frame.key_frame and frame.color_range == 2 for frame in frames)
        assert [float(frame.time) for frame in frames] == pytest.approx([0, 1 / 25, 2 / 25, 3 / 25])


@pytest.fixture
def permits(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """The threads encode a picture for each permit."""
    given = threading.Semaphore(0)

    def one(frame: Tensor) -> Tensor:
        if not given.acquire(timeout=HANGS_S):
            raise TimeoutError("nobody wants it")
        if not frame.any():
            raise EncodingError("a black frame")
        return jpeg(frame)

    def pictures(frames: PendingFrames, threads: ThreadPoolExecutor) -> Iterator[Tensor]:
        return threads.map(one, frames.frames.unbind())

    monkeypatch.setattr(motion_jpeg_module, "pictures", pictures)
    return given


def test_pictures_of_several_batches_are_on_their_way_at_once(tmp_path, nv12, rgb, permits):
    with MotionJpeg(tmp_path / "out.mov", VIDEO) as encoder:
        for part in torch.split(rgb, 4):
            encoder.write(part)  # none of the first is complete
        permits.release(11)
        settled = threading.Thread(target=encoder.settle)
        settled.start()
        settled.join(0.1)
        assert settled.is_alive(), "it waits until every picture is written"
        permits.release()
        settled.join(HANGS_S)
        assert not settled.is_alive()
    assert encoder.close().frames == 12
    assert quality(tmp_path / "out.mov", dict(enumerate(nv12.numpy())), "nv12").numbers == tuple(range(12))


def test_the_first_picture_that_fails_is_told_and_the_others_are_dropped(tmp_path, rgb, permits):
    frames = rgb.clone()
    frames[5] = 0
    encoder = MotionJpeg(tmp_path / "out.mov", VIDEO)
    encoder.write(frames[:4])
    encoder.write(frames[4:])
    permits.release(12)
    for _ in range(2):
        with pytest.raises(EncodingError, match="a black frame"):
            encoder.close()
    assert not list(tmp_path.iterdir())

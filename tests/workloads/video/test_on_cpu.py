"""The encoders of the CPU and Motion-JPEG: bounded waiting, their colours, and failures that leave nothing."""

from __future__ import annotations

import threading
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.full_disk import files_up_to
from tests.support.libjpeg import jpeg
from tests.support.patience import HANGS_S
from workloads.video import encoders, gpu_encoders
from workloads.video.encode import quality
from workloads.video.encoders import (
    KEPT_FRAMES,
    MOST_IN_FLIGHT,
    X264,
    EncodingError,
    Mp4v,
    PendingFrames,
    VideoFormat,
)
from workloads.video.gpu_encoders import MotionJpeg

pytestmark = pytest.mark.usefixtures("no_thread_stays")
VIDEO = VideoFormat(160, 96, Fraction(25))


@pytest.mark.parametrize("threads", [2, 5])
def test_it_keeps_as_many_frames_as_is_told(nv12, threads):
    """The number of waiting frames decides how long the encoder may work them off before other work is timed."""
    context = av.CodecContext.create("libx264", "w")
    encoders.configure(context, VIDEO, threads)
    shown = [av.VideoFrame.from_ndarray(frame, "nv12") for frame in nv12.repeat(4, 1, 1).numpy()]
    out = []
    for number, frame in enumerate(shown):
        frame.pts = number
        out.append(len(context.encode(frame)))
    kept = [number + 1 - sum(out[: number + 1]) for number in range(48)]
    assert max(kept) == threads + KEPT_FRAMES


def test_settled_it_has_room_for_a_batch_and_may_have_frames_in_hand(tmp_path, nv12, monkeypatch):
    """At the end of every step of a pipeline that it is the longest stage of."""
    gate, batches = threading.Event(), torch.split(nv12, 4)
    monkeypatch.setattr(X264, "_prepared", lambda encoder, frames: PendingFrames(frames, gate.wait))
    encoder = X264(tmp_path / "out.mp4", VIDEO)
    for batch in batches[: MOST_IN_FLIGHT - 1]:
        encoder.write(batch)
    encoder.settle()
    encoder.write(batches[-1])
    settled = threading.Thread(target=encoder.settle)
    settled.start()
    settled.join(0.1)
    assert settled.is_alive()
    gate.set()
    settled.join(HANGS_S)
    assert not settled.is_alive()
    assert encoder.close().frames == 12


def test_a_full_disk_that_nobody_told_of_comes_out_and_leaves_nothing(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (24, 96, 160, 3), dtype=np.uint8)
    encoder = Mp4v(tmp_path / "out.mp4", VIDEO)
    with files_up_to(2**15):
        encoder.write(noise)
        with pytest.raises(EncodingError, match=r"out\.mp4 came out with 0 of 24 frames: give uint8 .* and make room"):
            encoder.close()
    assert not list(tmp_path.iterdir())


def test_frames_that_opencv_drops_are_missed(tmp_path, bgr):
    encoder = Mp4v(tmp_path / "out.mp4", VIDEO)
    encoder.write(bgr)
    encoder.write(bgr[:3, :, :80])
    with pytest.raises(EncodingError, match=r"came out with 12 of 15 frames: give uint8 \[n, 96, 160, 3\]"):
        encoder.close()


def test_frames_that_do_not_fit_are_refused_where_a_library_gets_their_address(tmp_path, nv12):
    with X264(tmp_path / "out.mp4", VIDEO) as encoder:
        for frames in (nv12[:, :, :80], nv12.float(), nv12.movedim(1, 2)):
            with pytest.raises(EncodingError, match=r"and the video needs contiguous uint8 \[n, \*\[144, 160\]\]"):
                encoder.write(frames)
        encoder.write(nv12)


# --- Motion-JPEG, with libjpeg in place of nvJPEG ---------------------------------------------------------------------


def test_a_player_shows_the_colours_that_were_given(tmp_path):
    """Flat ones, which 4:2:0 keeps, from one end of the range to the other; each frame is a keyframe."""
    colours = torch.tensor([(0, 0, 0), (255, 255, 255), (200, 30, 60), (20, 180, 240)], dtype=torch.uint8)
    path = tmp_path / "out.mp4"
    with MotionJpeg(path, VIDEO) as encoder:
        encoder.write(colours[:, :, None, None].expand(-1, -1, 96, 160).contiguous())

    with av.open(path) as container:
        shown = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
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

    monkeypatch.setattr(gpu_encoders, "_picture", lambda wait, frame: one(frame))
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
    assert quality(tmp_path / "out.mov", dict(enumerate(nv12.numpy()))).numbers == tuple(range(12))


def test_the_first_picture_that_fails_is_told_and_the_others_are_dropped(tmp_path, rgb, permits):
    frames = rgb.clone()
    frames[5] = 0
    encoder = MotionJpeg(tmp_path / "out.mov", VIDEO)
    encoder.write(frames[:4])
    encoder.write(frames[4:])
    permits.release(12)
    with pytest.raises(EncodingError, match="a black frame"):
        encoder.close()
    assert not list(tmp_path.iterdir())

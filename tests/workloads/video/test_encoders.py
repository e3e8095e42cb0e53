"""Every encoder on a CPU: each frame in order, at its quality and in its colours; an error leaves what was there.

libx264 stands for NVENC, and libjpeg for nvJPEG.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.frame_numbers import find_numbers
from tests.support.full_disk import files_up_to
from tests.support.libjpeg import jpeg
from tests.support.patience import HANGS_S
from workloads.video import encoders
from workloads.video.arrivals import luma_of_nv12
from workloads.video.encode import quality
from workloads.video.encoders import (
    KEPT_FRAMES,
    MOST_IN_FLIGHT,
    X264,
    EncodingError,
    MotionJpeg,
    Mp4v,
    Nvenc,
    Recorder,
    _picture,
    why_not,
)
from workloads.video.frames import VideoInfo, nv12_from_rgb

pytestmark = pytest.mark.usefixtures("no_thread_stays")
VIDEO = VideoInfo(Path("clip.mp4"), 160, 96, 12, Fraction(25), "bt601", keyframes=())
GPU = torch.device("cuda", 0)
# By name: the encoder of a path and a format, the form of its frames, and its codec.
ENCODERS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "Mp4v": (Mp4v, "bgr", "mpeg4"),
    "X264": (X264, "nv12", "h264"),
    "MotionJpeg": (MotionJpeg, "rgb", "mjpeg"),
    "Nvenc": (partial(Nvenc, device=GPU), "nv12", "h264"),
}


@pytest.fixture(autouse=True)
def libx264(monkeypatch: pytest.MonkeyPatch) -> None:
    """libx264 in place of NVENC, with frames in host memory, on a GPU that can."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: None)
    monkeypatch.setattr(encoders, "why_not", lambda gpu: None)
    monkeypatch.setattr(encoders, "NVENC", "libx264")
    monkeypatch.setattr(encoders, "ON_DEVICE", "nv12")
    monkeypatch.setattr(encoders, "NVENC_OPTIONS", {"preset": "veryfast", "crf": "18", "g": "10", "bf": "2"})


@pytest.fixture(params=ENCODERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def frames(name, request) -> Any:
    """The twelve frames in the form that the encoder takes."""
    return request.getfixturevalue(ENCODERS[name][1])


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("Mp4v", ".mp4"),
        ("Mp4v", ".avi"),
        ("X264", ".mp4"),
        *(("MotionJpeg", suffix) for suffix in (".mp4", ".mov", ".avi")),
        ("Nvenc", ".mp4"),
        ("Nvenc", ".mkv"),
    ],
)
def test_every_frame_comes_back_in_order_at_its_quality_and_rate(tmp_path, nv12, frames, name, suffix):
    """libx264 holds back frames until it is flushed, and so does NVENC where it looks ahead or uses B-frames."""
    path = tmp_path / f"out{suffix}"
    path.write_bytes(b"of yesterday")
    with ENCODERS[name][0](path, VIDEO) as encoder:
        encoder.write(frames[:5])
        encoder.write(frames[5:5])
        encoder.write(frames[5:])

    assert encoder.frames == 12
    found = quality(path, dict(enumerate(nv12.numpy())), VIDEO)
    assert find_numbers(torch.stack([*found.grids]), luma_of_nv12(nv12)) == [*range(12)]
    assert min(found.psnr_db.values()) > 35
    assert found.bit_rate_mbit_s == pytest.approx(8e-6 * path.stat().st_size * 25 / 12)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(RuntimeError, match="after shutdown"):
        encoder.write(frames)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == ENCODERS[name][2]
        keyframes = [packet.pts for packet in container.demux(stream) if packet.size and packet.is_keyframe]
        container.seek(0)
        times = [float(frame.time) for frame in container.decode(stream)]
    assert times == pytest.approx([number / 25 for number in range(12)], abs=0.001)
    if name == "Nvenc":
        assert len(keyframes) == 2  # frames 0 and 10


@pytest.mark.parametrize(("matrix", "code"), [("bt601", 6), ("bt709", 1)])
@pytest.mark.parametrize("name", ["X264", "Nvenc"])
def test_colours_are_tagged_in_limited_range(tmp_path, nv12, name, matrix, code):
    path = tmp_path / "out.mp4"
    with ENCODERS[name][0](path, replace(VIDEO, frames_per_second=Fraction(30000, 1001), matrix=matrix)) as encoder:
        encoder.write(nv12)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        coding = stream.codec_context
        colours = coding.colorspace, coding.color_primaries, coding.color_trc, coding.color_range
        assert colours == (code, code, code, 1)
        assert coding.pix_fmt == "yuv420p"
        assert Fraction(stream.average_rate.numerator, stream.average_rate.denominator) == Fraction(30000, 1001)


def test_an_error_of_the_caller_aborts_and_leaves_what_was_there_before(tmp_path, frames, name):
    path = tmp_path / "out.mp4"
    path.write_bytes(b"of yesterday")
    encoder = ENCODERS[name][0](path, VIDEO)

    def fail() -> None:
        with encoder:
            encoder.write(frames)
            raise ArithmeticError("of the caller")

    with pytest.raises(ArithmeticError, match="of the caller"):
        fail()
    encoder.abort()
    with pytest.raises(RuntimeError, match="after shutdown"):
        encoder.close()
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"of yesterday"]


def test_lost_and_swapped_frames_are_seen(tmp_path, rgb, monkeypatch):
    path = tmp_path / "out.mp4"
    nv12 = nv12_from_rgb(rgb[[0, 1, 9, 8, 4, 11]], "bt601")
    monkeypatch.setitem(encoders.X264_OPTIONS, "crf", "1")
    with X264(path, VIDEO) as encoder:
        encoder.write(nv12)
    found = quality(path, dict(enumerate(nv12_from_rgb(rgb, "bt601").numpy())), VIDEO)
    assert len(found.grids) == 6
    assert min(found.psnr_db[0], found.psnr_db[1], found.psnr_db[4]) > 42
    assert max(found.psnr_db[2], found.psnr_db[3], found.psnr_db[5]) < 35
    some = quality(path, {0: nv12.numpy()[0], 5: nv12.numpy()[5], 9: nv12.numpy()[0]}, VIDEO)
    assert [*some.psnr_db] == [0, 5]
    assert min(some.psnr_db.values()) > 42


# --- bounded waiting, and failures that leave nothing -----------------------------------------------------------------


@pytest.mark.parametrize("threads", [2, 5])
def test_it_keeps_as_many_frames_as_is_told(nv12, threads):
    """The number of waiting frames decides how long the encoder may work them off before other work is timed."""
    context = av.CodecContext.create("libx264", "w")
    encoders.configure(context, VIDEO, "nv12", encoders.X264_OPTIONS)
    context.thread_type, context.thread_count = "FRAME", threads
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
    monkeypatch.setattr(X264, "_prepared", lambda encoder, frames: (frames, gate.wait))
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
    encoder.close()
    assert encoder.frames == 12


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
    with pytest.raises(EncodingError, match=r"with 12 of 15 frames: give uint8 \[n, 96, 160, 3\] to a name in \.mp4"):
        encoder.close()


# --- Motion-JPEG, with libjpeg in place of nvJPEG ---------------------------------------------------------------------


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

    monkeypatch.setattr(encoders, "_picture", lambda wait, frame: one(frame))
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
    assert encoder.frames == 12
    found = quality(tmp_path / "out.mov", {}, VIDEO)
    assert find_numbers(torch.stack([*found.grids]), luma_of_nv12(nv12)) == [*range(12)]


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


def test_a_thread_keeps_its_encoder(monkeypatch):
    made = []

    def make(device: int) -> SimpleNamespace:
        made.append(device)
        return SimpleNamespace(encode=lambda frame: frame)

    monkeypatch.setattr(encoders, "NvJpeg", make)
    monkeypatch.setattr(encoders, "_of_thread", threading.local())
    frames = [SimpleNamespace(device=1) for _ in range(3)]
    assert [_picture(lambda: None, frame) for frame in frames] == frames
    assert made == [1]


def test_a_trial_of_nvenc_that_fails_with_an_odd_byte_is_told(monkeypatch):
    monkeypatch.setattr(encoders, "TRIAL", r"import os; os.write(2, b'odd \xff'); os._exit(3)")
    assert "(a trial ended with status 3, odd \ufffd)" in str(why_not(90))


# --- files that are recorded without end ------------------------------------------------------------------------------


SMALL = replace(VIDEO, width=96, height=64, frames=4)


def batch(frames: int) -> NDArray[np.uint8]:
    return np.random.default_rng(frames).integers(0, 255, (frames, 64, 96, 3), np.uint8)


def test_a_file_is_closed_beside_the_next_one(tmp_path: Path) -> None:
    may_close = threading.Event()

    class SlowToClose(Mp4v):
        def close(self) -> None:
            assert may_close.wait(HANGS_S)
            super().close()

    recorder = Recorder(SlowToClose, SMALL, torch.device("cpu"), 4, tmp_path)
    recorder.write(batch(4))
    recorder.write(batch(2))
    assert [*tmp_path.glob("*/clip-*")] == []
    may_close.set()
    recorder.settle()
    (complete,) = tmp_path.glob("*/clip-*")
    assert len(quality(complete, {}, SMALL).grids) == 4
    recorder.close()


def test_what_closing_raises_comes_out_of_the_next_settle(tmp_path: Path) -> None:
    class FullDisk(Mp4v):
        def close(self) -> None:
            self.abort()
            raise OSError("the disk is full")

    recorder = Recorder(FullDisk, SMALL, torch.device("cpu"), 4, tmp_path)
    recorder.write(batch(4))
    with pytest.raises(OSError, match="the disk is full"):
        recorder.settle()
    recorder.close()
    assert list(tmp_path.iterdir()) == []

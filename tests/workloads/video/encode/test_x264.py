"""H.264 from a thread: every frame in order and in its colours, bounded waiting, and failures that leave nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("av")
import av

from tests.support.full_disk import files_up_to
from tests.support.patience import HANGS_S, wait_until
from workloads.video.clip.clip import Clip, rendered
from workloads.video.clip.colour import nv12_from_rgb
from workloads.video.clip.video_file import VideoError
from workloads.video.encode import x264 as x264_module
from workloads.video.encode.encoder_thread import EncoderThread
from workloads.video.encode.encoding import Encoded, EncodingError, VideoFormat
from workloads.video.encode.pending_frames import PendingFrames
from workloads.video.encode.quality import quality
from workloads.video.encode.x264 import KEPT_FRAMES, X264, X264Settings

pytestmark = pytest.mark.usefixtures("no_thread_stays")
CLIP = Clip(160, 96, 12)
VIDEO = VideoFormat(CLIP.width, CLIP.height, Fraction(25))


@pytest.fixture(scope="module")
def nv12() -> Tensor:
    """uint8 [12, 144, 160]: the clip."""
    rgb = np.stack([rendered(CLIP, number)[0] for number in range(CLIP.frames)])
    return nv12_from_rgb(torch.from_numpy(rgb).permute(0, 3, 1, 2).contiguous(), "bt601")


def test_more_frames_than_libx264_looks_ahead_are_all_flushed(tmp_path, nv12):
    path = tmp_path / "out.mp4"
    with X264(path, VIDEO, X264Settings(preset="ultrafast", threads=2), batch=5) as encoder:
        for _ in range(6):
            encoder.write(nv12)
    assert quality(path, {}, "nv12").numbers == tuple(range(12)) * 6


@pytest.mark.parametrize(("matrix", "code"), [("bt601", 6), ("bt709", 1)])
def test_colours_are_tagged_in_limited_range(tmp_path, nv12, matrix, code):
    path = tmp_path / "out.mp4"
    with X264(path, VideoFormat(CLIP.width, CLIP.height, Fraction(30000, 1001), matrix)) as encoder:
        encoder.write(nv12)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        coding = stream.codec_context
        assert (coding.colorspace, coding.color_primaries, coding.color_trc, coding.color_range) == (
            code,
            code,
            code,
            1,
        )
        assert coding.pix_fmt == "yuv420p"
        assert Fraction(stream.average_rate.numerator, stream.average_rate.denominator) == Fraction(30000, 1001)


def test_threads_take_a_frame_each():
    """In sliced threads, PyAV's default, every picture would be cut into as many pieces."""
    context = av.CodecContext.create("libx264", "w")
    video = VideoFormat(64, 512, Fraction(25))
    x264_module.configure(context, video, X264Settings(threads=4, preset="ultrafast"))
    assert (context.framerate, context.time_base) == (25, Fraction(1, 25))
    frame = torch.full((1, *video.nv12_shape), 128, dtype=torch.uint8)
    packets = [*context.encode(next(x264_module.video_frames(frame, iter([0])))), *context.encode(None)]
    first = bytes(packets[0])
    units = [first[place + 3] & 31 for place in range(len(first) - 3) if first[place : place + 3] == b"\0\0\1"]
    assert units.count(5) == 1  # slices of the IDR picture


def test_a_bit_rate_replaces_the_quality():
    assert X264Settings(crf=20.5).options()["crf"] == "20.5"
    options = X264Settings(bit_rate_mbit_s=2.5, most_frames_between_keyframes=30).options()
    assert options == {"preset": "veryfast", "g": "30", "b": "2500000"}


def test_a_better_quality_costs_more(tmp_path, nv12):
    sizes = []
    for crf in (18, 35):
        with X264(tmp_path / "out.mp4", VIDEO, X264Settings(crf=crf)) as encoder:
            encoder.write(nv12)
        sizes.append(encoder.close().bytes)
    assert sizes[0] > 1.5 * sizes[1]


def test_frames_lie_where_they_are_until_they_are_encoded(nv12):
    """So no copy stands between a page-locked buffer and libx264, and the buffer is free when `encode` returns."""
    frames = nv12.clone()
    numbers = iter(range(12))
    shown = next(x264_module.video_frames(frames[:1], numbers))
    frames[0, 0, 0] = 77
    assert shown.to_ndarray()[0, 0] == 77
    assert shown.pts == 0


def test_a_buffer_may_be_filled_again_once_its_frames_are_encoded(tmp_path, nv12):
    """The ring of page-locked buffers relies on this: here one buffer carries all frames."""
    buffer = torch.empty_like(nv12[:3])

    class OneBuffer(X264):
        def write(self, frames: Tensor) -> None:
            self._thread.wait_for_room()
            self._thread.put(PendingFrames(buffer, lambda: buffer.copy_(frames)))

    path = tmp_path / "out.mp4"
    with OneBuffer(path, VIDEO, slots=2) as encoder:
        for piece in torch.split(nv12, 3):
            encoder.write(piece)
    assert quality(path, {}, "nv12").numbers == tuple(range(12))


def test_the_caller_waits_only_while_everything_is_in_flight(tmp_path, nv12):
    """Three slots: one is encoded and two wait; the fourth frame waits for the first to be over."""
    gate, put = threading.Event(), []
    encoder = X264(tmp_path / "out.mp4", VIDEO, slots=3)

    def write() -> None:
        for number in range(4):
            encoder._thread.wait_for_room()
            encoder._thread.put(PendingFrames(nv12[number : number + 1], gate.wait))
            put.append(number)

    caller = threading.Thread(target=write)
    caller.start()
    wait_until(lambda: len(put) == 3)
    caller.join(0.1)
    assert put == [0, 1, 2]
    gate.set()
    caller.join(HANGS_S)
    assert put == [0, 1, 2, 3]
    assert encoder.close().frames == 4


def test_an_error_in_the_thread_comes_out_of_the_next_write_and_ends_everything(tmp_path, nv12):
    def fail() -> None:
        raise ArithmeticError("the copy failed")

    encoder = X264(tmp_path / "out.mp4", VIDEO)
    encoder.write(nv12[:4])
    encoder._thread.put(PendingFrames(nv12[4:8], fail))
    with pytest.raises(ArithmeticError, match="the copy failed"):
        _forever(lambda: encoder.write(nv12))
    with pytest.raises(ArithmeticError, match="the copy failed"):
        encoder.close()
    assert not list(tmp_path.iterdir())


def test_a_caller_that_waits_for_room_hears_of_the_error(tmp_path, nv12):
    gate, encoder = threading.Event(), X264(tmp_path / "out.mp4", VIDEO, slots=1)

    def fail() -> None:
        gate.wait()
        raise ArithmeticError("the copy failed")

    encoder._thread.put(PendingFrames(nv12, fail))
    timer = threading.Timer(0.1, gate.set)
    timer.start()
    with pytest.raises(ArithmeticError, match="the copy failed"):
        encoder.write(nv12)
    timer.join()


def test_a_full_disk_comes_out_and_leaves_nothing(tmp_path):
    """Noise at crf 0 fills the megabyte that the container writes at a time, and then what the file may have."""
    noise = torch.randint(16, 236, (8, *VIDEO.nv12_shape), dtype=torch.uint8)
    encoder = X264(tmp_path / "out.mp4", VIDEO, X264Settings(crf=0))
    with files_up_to(2**20), pytest.raises(OSError, match=r"out\.mp4 cannot be written \(File too large\)"):
        _forever(lambda: encoder.write(noise))
    assert not list(tmp_path.iterdir())


def test_all_threads_end_soon_after_an_error_and_after_an_abort(tmp_path, nv12):
    before = set(threading.enumerate())
    for end in (lambda encoder: encoder._thread.put(PendingFrames(nv12[0])), lambda encoder: encoder.abort()):
        encoder = X264(tmp_path / "out.mp4", VIDEO)
        for _ in range(3):
            encoder.write(nv12)
        end(encoder)  # a frame of a wrong shape, past all checks
        wait_until(lambda: set(threading.enumerate()) <= before)
        encoder.abort()
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (torch.zeros(2, 96, 160, dtype=torch.uint8), r"uint8 \[2, 96, 160\], and the video needs contiguous"),
        (torch.zeros(2, 144, 160), r"float32 \[2, 144, 160\]"),
        (torch.zeros(2, 160, 144, dtype=torch.uint8).mT, "strides"),
    ],
)
def test_frames_that_do_not_fit_are_refused_at_once(tmp_path, nv12, frames, said):
    encoder = X264(tmp_path / "out.mp4", VIDEO)
    with pytest.raises(EncodingError, match=said):
        encoder.write(frames)
    encoder.write(nv12)
    assert encoder.close().frames == 12


def test_settings_and_paths_that_cannot_be_are_known_before_the_first_frame(tmp_path):
    with pytest.raises(EncodingError, match=r"libx264 refuses X264Settings\(preset='none'"):
        X264(tmp_path / "out.mp4", VIDEO, X264Settings(preset="none"))
    with pytest.raises(OSError, match="cannot be written"):
        X264(tmp_path / "nowhere" / "out.mp4", VIDEO)
    with pytest.raises(VideoError, match=r"\.mp4"):
        X264(tmp_path / "out.txt", VIDEO)
    with pytest.raises(ValueError, match="allow at least 1"):
        X264(tmp_path / "out.mp4", VIDEO, slots=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("width", "height", "rate"), [(161, 96, 30), (160, 0, 30), (160, 96, 0)])
def test_formats_that_cannot_be(width, height, rate):
    with pytest.raises(ValueError, match=r"even sides|above 0"):
        VideoFormat(width, height, Fraction(rate))


@pytest.mark.parametrize("threads", [2, 5])
def test_it_keeps_as_many_frames_as_is_told(nv12, threads):
    """The number of waiting frames decides how long the encoder may work them off before other work is timed."""
    context = av.CodecContext.create("libx264", "w")
    x264_module.configure(context, VIDEO, X264Settings(threads=threads))
    shown = x264_module.video_frames(nv12.repeat(4, 1, 1), iter(range(48)))
    out = [len(context.encode(frame)) for frame in shown]
    kept = [number + 1 - sum(out[: number + 1]) for number in range(48)]
    assert max(kept) == threads + KEPT_FRAMES


def test_settled_it_has_room_for_a_batch_and_may_have_frames_in_hand(tmp_path, nv12):
    """At the end of every step of a pipeline that it is the longest stage of."""
    gate, encoder = threading.Event(), X264(tmp_path / "out.mp4", VIDEO, slots=2)
    for batch in (PendingFrames(nv12[:4], gate.wait), PendingFrames(nv12[4:8])):
        encoder._thread.wait_for_room()
        encoder._thread.put(batch)
    settled = threading.Thread(target=encoder.settle)
    settled.start()
    settled.join(0.1)
    assert settled.is_alive()
    gate.set()
    settled.join(HANGS_S)
    assert not settled.is_alive()
    encoder.close()


def test_a_batch_is_let_go_when_the_next_one_is_asked_for():
    """Or the thread would hold a batch of the device's memory while it has nothing to do."""

    class Batch:
        pass

    gone = threading.Event()
    path = Path("unused")

    def encode(batches: Iterator[Batch]) -> Encoded:
        for batch in batches:
            del batch
        return Encoded(path, 0, 0, 0)

    class Telling(Batch):
        def __del__(self) -> None:
            gone.set()

    thread: EncoderThread[Batch] = EncoderThread(path, encode, 1)
    thread.wait_for_room()
    thread.put(Telling())
    assert gone.wait(HANGS_S)
    thread.abort()


def _forever(write) -> None:
    """Writes until it raises."""
    end = time.monotonic() + HANGS_S
    while time.monotonic() < end:
        write()
        time.sleep(0.001)

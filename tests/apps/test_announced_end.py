"""The number of frames of a container that names none, whole and cut short."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from apps.video_segmentation.announced_end import announced_frames
from tests.workloads.video.test_frames import make
from workloads.video.frames import examine

av = pytest.importorskip("av", reason="PyAV reads videos: pip install av")

NTSC = Fraction(30_000, 1001)


def cut(path: Path, share: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: round(len(content) * share)])
    return path


@pytest.mark.parametrize(
    ("suffix", "rate"), [(".mkv", NTSC), (".flv", Fraction(24_000, 1001)), (".mp4", 30), (".avi", 25), (".ts", 60)]
)
def test_a_whole_file_announces_what_it_holds(tmp_path: Path, suffix: str, rate: Fraction | int) -> None:
    info = examine(make(tmp_path / f"a{suffix}", 40, rate=rate))
    assert announced_frames(info) == info.frames == 40


@pytest.mark.parametrize("suffix", [".mkv", ".flv"])
def test_a_file_cut_short_announces_more_than_it_holds(tmp_path: Path, suffix: str) -> None:
    info = examine(cut(make(tmp_path / f"a{suffix}", 40, rate=NTSC), 0.5))
    assert info.frames < 30
    assert announced_frames(info) == 40


def test_of_a_transport_stream_nobody_can_tell(tmp_path: Path) -> None:
    info = examine(cut(make(tmp_path / "a.ts", 40), 0.5))
    assert announced_frames(info) == info.frames < 30


def test_a_frame_more_or_less_is_how_ends_are_rounded(tmp_path: Path) -> None:
    info = examine(make(tmp_path / "a.mkv", 40))
    assert announced_frames(replace(info, frames=39)) == 39
    assert announced_frames(replace(info, frames=38)) == 40
    assert announced_frames(replace(info, frames=50)) == 50


@pytest.mark.parametrize("suffix", [".mkv", ".flv"])
def test_sound_that_goes_on_for_longer_is_no_missing_picture(tmp_path: Path, suffix: str) -> None:
    silent, path = make(tmp_path / "silent.mp4", 40), tmp_path / f"a{suffix}"
    with av.open(silent) as read, av.open(path, "w") as written:
        video = written.add_stream_from_template(read.streams.video[0])
        sound = written.add_stream("aac", rate=48_000)
        for packet in read.demux(video=0):
            if packet.size:
                packet.stream = video
                written.mux(packet)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4 * 48_000), np.float32), "fltp", "mono")
        frame.rate = 48_000
        written.mux(sound.encode(frame))
        written.mux(sound.encode(None))
    info = examine(path)
    assert announced_frames(info) == info.frames == 40

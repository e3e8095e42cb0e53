"""Videos appear whole or not at all: from packets of any encoder, on a full disk, and when the encoder breaks."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.support.full_disk import files_up_to
from workloads.video.clip import muxing
from workloads.video.clip.frame_number import paint
from workloads.video.clip.muxing import CodedTrack, Coding, replacing_video
from workloads.video.clip.partial_files import partial_file

av = pytest.importorskip("av", reason="PyAV writes videos: pip install av")

FRAMES = 24
JPEG = Coding("mjpeg", 160, 96, Fraction(30))


def frames(count: int = FRAMES) -> Iterator:
    random = np.random.default_rng(0)
    background = random.integers(0, 256, (96, 160, 3), np.uint8)
    for number in range(count):
        rgb = np.roll(background, number, 1)
        paint(rgb, number)
        frame = av.VideoFrame.from_ndarray(rgb, "rgb24")
        frame.pts, frame.time_base = number, Fraction(1, 30)
        yield frame


def jpegs(count: int = FRAMES) -> Iterator[bytes]:
    image = pytest.importorskip("PIL.Image")
    for frame in frames(count):
        file = io.BytesIO()
        image.fromarray(frame.to_ndarray()).save(file, "JPEG", quality=80)
        yield file.getvalue()


def mjpeg(container, count: int = FRAMES) -> None:
    track = CodedTrack(container, JPEG)
    for picture in jpegs(count):
        track.mux(picture)


def write(path: Path, *works: Callable) -> None:
    with replacing_video(path) as container:
        for work in works:
            work(container)


def test_a_path_that_cannot_be_written_is_one_sentence_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()
    for path, reason in (
        (tmp_path / "none" / "a.mp4", "No such file or directory"),
        (tmp_path / "file" / "a.mp4", "Not a directory"),
        (tmp_path / "folder.mp4", "Is a directory"),
        (tmp_path / ("a" * 300 + ".mp4"), "File name too long"),
    ):
        begun: list = []
        with pytest.raises(OSError, match=rf"cannot be written \({reason}\): name a file in a folder") as raised:
            write(path, begun.append)
        assert not begun
        assert str(raised.value).startswith(str(path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder.mp4"]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
@pytest.mark.parametrize("write_bytes", [4096, 2**20], ids=["while muxing", "in the trailer"])
def test_a_full_disk_is_one_sentence_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, write_bytes: int
) -> None:
    monkeypatch.setattr(muxing, "WRITE_BYTES", write_bytes)
    pictures, muxed = list(jpegs()), []
    assert sum(map(len, pictures)) > 60_000

    def work(container) -> None:
        track = CodedTrack(container, JPEG)
        for picture in pictures:
            track.mux(picture)
            muxed.append(picture)

    says = r"^\S+ cannot be written \(File too large\), \d+ MiB are free there: make room or choose another folder$"
    with files_up_to(20_000), pytest.raises(OSError, match=says):
        write(tmp_path / f"a{suffix}", work)
    assert list(tmp_path.iterdir()) == []
    assert (len(muxed) < FRAMES) == (write_bytes == 4096), "a full disk is seen while there is work left to save"


def test_what_a_killed_process_left_behind_goes_and_a_living_ones_stays(tmp_path: Path) -> None:
    path = tmp_path / "a[1].mp4"
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead, alive, own = int(child.stdout), 1, str(os.getpid())
    name = partial_file(path).name
    left_over = name.replace(own, str(dead))
    others = {name.replace(own, str(alive)), ".a[1].backup.mp4", left_over.replace("[1]", "1")}
    others.add(f".a[1].another0-{dead}.mp4")  # of a process of that number on a host that shares the folder
    for each in (left_over, *others):
        (tmp_path / each).touch()
    write(path, mjpeg)
    assert {each.name for each in tmp_path.iterdir()} == {"a[1].mp4", *others}

"""OpenCV's frames and torchcodec's, in batches, and the record of those that arrived."""

import dataclasses
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpugate.errors import DisprovedError
from gpugate.workload import Context
from tests.support.copied_clips import copied, cut_short
from workloads.video.clip.clip import CLIPS, FULL, GOP_FRAMES, Clip, clip_path
from workloads.video.clip.colour import planes
from workloads.video.clip.frame_number import read_numbers
from workloads.video.clip.video_file import VideoError, VideoInfo, examine
from workloads.video.decode import decoding
from workloads.video.decode import promises as decode_stage
from workloads.video.decode.arrivals import Arrivals, luma_grids
from workloads.video.decode.decoding import HostDecoder, TorchCodecDecoder
from workloads.video.decode.promises import COMPARED_BATCHES, SESSIONS, frames_agree
from workloads.video.needs import BATCH

CPU = torch.device("cpu")
CLIP = Clip(160, 96, 75)  # keyframes at 0, 30 and 60
INFO = VideoInfo(Path("clip.mp4"), 160, 96, 23, Fraction(30), "h264", "bt601", keyframes=(0, 5, 6, 14, 20))


@pytest.fixture(scope="module")
def clip(cache_dir: Path) -> Path:
    return clip_path(cache_dir, CLIP)


@pytest.fixture(scope="module")
def cut_clip(clip: Path) -> Path:
    return cut_short(clip, clip.with_name("cut.mp4"))


def numbers_of(bgr: np.ndarray) -> list[int]:
    if not len(bgr):
        return []
    return read_numbers(torch.from_numpy(np.stack([cv2.cvtColor(each, cv2.COLOR_BGR2GRAY) for each in bgr]))).tolist()


def to_the_end(decoder: HostDecoder | TorchCodecDecoder, batch: int, numbers: list[int]) -> None:
    """Appends the numbers of all frames that are left, as far as it gets."""
    while len(frames := decoder.read(batch)):
        numbers += numbers_of(frames) if isinstance(frames, np.ndarray) else read_numbers(planes(frames)[0]).tolist()


@pytest.mark.parametrize(("suffix", "loop"), [(".mp4", False), (".mkv", True), (".ts", True)])
def test_opencv_gives_every_frame_in_order(clip: Path, tmp_path: Path, suffix: str, loop: bool) -> None:
    """Each frame once and then nothing, or round and round."""
    decoder = HostDecoder(copied(clip, tmp_path / f"clip{suffix}"), loop=loop)
    read = [decoder.read(32) for _ in range(6)]
    assert read[0].shape == (32, 96, 160, 3)
    numbers = [number for frames in read for number in numbers_of(frames)]
    assert numbers == [number % 75 for number in range(192 if loop else 75)]
    decoder.close()


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("batch", [7, 60])
def test_a_clip_that_was_cut_short_gives_what_decodes_and_then_says_so(cut_clip: Path, batch: int, loop: bool) -> None:
    decoder, numbers = HostDecoder(cut_clip, loop), []
    with pytest.raises(VideoError, match=r"cut.mp4 gave \d+ of its 75 frames, since it was cut short") as raised:
        to_the_end(decoder, batch, numbers)
    assert 30 < len(numbers) < 75
    assert f"gave {len(numbers)} of" in str(raised.value)
    assert numbers == list(range(len(numbers)))
    with pytest.raises(VideoError, match="cut short"):
        decoder.read(batch)
    decoder.close()


def test_what_opencv_cannot_open_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.mp4"
    text.write_text("no video at all\n" * 100)
    with pytest.raises(VideoError, match=r"text.mp4 is not a video"):
        HostDecoder(text)
    monkeypatch.setattr(decoding, "examine", lambda path: INFO)
    with pytest.raises(VideoError, match=r"clip.mp4 cannot be opened by OpenCV: convert it"):
        HostDecoder(text)


def test_an_opencv_that_would_show_other_colours_is_not_asked(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the version shows the difference: the frames look right."""
    monkeypatch.setattr(cv2, "__version__", "4.11.0")
    HostDecoder(clip).close()
    monkeypatch.setattr(decoding, "examine", lambda path: dataclasses.replace(examine(path), matrix="bt709"))
    with pytest.raises(VideoError, match=r"has its colours in bt709, and OpenCV 4.11.0 would show them in bt601: pip"):
        HostDecoder(clip)
    monkeypatch.setattr(cv2, "__version__", "5.0.0")
    HostDecoder(clip).close()


def test_decoded_frames_of_every_session_are_compared(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session decodes each group of pictures of the clip: one that decodes its own wrongly is told."""
    assert SESSIONS * GOP_FRAMES < COMPARED_BATCHES * BATCH <= FULL.frames
    monkeypatch.setitem(CLIPS, "cpu", CLIP)  # type: ignore[misc]
    context = Context(torch.device("cpu"), 8, 0, cache_dir)
    assert frames_agree(decode_stage.planes, "h264", context) == "inf dB with OpenCV's over 10 frames"

    def darker_behind(*arguments: object) -> decoding.Decoder:
        decoder = decode_stage.planes(*arguments)  # type: ignore[arg-type]
        numbers, read = iter(range(100)), decoder.read
        monkeypatch.setattr(decoder, "read", lambda count: read(count) // (2 if next(numbers) >= 60 // BATCH else 1))
        return decoder

    with pytest.raises(DisprovedError, match=r"\d\.\d dB with OpenCV's over 10 frames: 45 dB are wanted"):
        frames_agree(darker_behind, "h264", context)


# --- a frame that is lost, doubled, swapped, or not what was sent shows in the record, on both kinds of path ---------


@pytest.fixture(scope="module")
def path(cache_dir: Path) -> Path:
    return clip_path(cache_dir, Clip(320, 192, 10))


@pytest.fixture(scope="module")
def bgr(path: Path) -> NDArray[np.uint8]:
    with av.open(path) as container:
        return np.stack([frame.to_ndarray(format="bgr24") for frame in container.decode(video=0)])


@pytest.fixture(scope="module")
def nv12(path: Path) -> Tensor:
    with av.open(path) as container:
        return torch.from_numpy(np.stack([frame.to_ndarray(format="nv12") for frame in container.decode(video=0)]))


@pytest.fixture
def arrivals(path: Path) -> Arrivals:
    return Arrivals(luma_grids(path), CPU, numbered=True)


def test_all_is_right_round_and_round(arrivals: Arrivals, nv12: Tensor) -> None:
    assert len(arrivals) == 10
    around = torch.cat((nv12, nv12))
    for first in range(0, 18, 6):
        assert arrivals.of_nv12(around[first : first + 6]).tolist() == [[1, 1]] * 6
    arrivals.begin()
    assert arrivals.of_nv12(nv12[:8]).tolist() == [[1, 1]] * 8


def test_a_lost_a_doubled_and_a_swapped_frame_are_out_of_turn(path: Path, nv12: Tensor, bgr: NDArray[np.uint8]) -> None:
    for order, right in (
        ([0, 2, 3], [1, 0, 0]),
        ([0, 0, 1], [1, 0, 0]),
        ([0, 2, 1], [1, 0, 0]),
        ([0, 1, 2], [1, 1, 1]),
    ):
        assert Arrivals(luma_grids(path), CPU, True).of_nv12(nv12[order])[:, 0].tolist() == right
        assert Arrivals(luma_grids(path), CPU, True).of_bgr(bgr[order], "bt601")[:, 0].tolist() == right


def test_a_clip_without_numbers_is_told_by_its_luma(path: Path, nv12: Tensor) -> None:
    found = Arrivals(luma_grids(path), CPU, numbered=False).of_nv12(nv12[[0, 5, 2]])
    assert found.tolist() == [[1, 1], [1, 0], [1, 1]], "of other pixels, though no number is wrong"


def test_a_frame_without_an_expected_luma_fits(path: Path, nv12: Tensor) -> None:
    grids = luma_grids(path).clone()
    grids[1:] = torch.nan
    found = Arrivals(grids, CPU, True).of_nv12(255 - nv12[:3])
    assert found[:, 1].tolist() == [0, 1, 1]

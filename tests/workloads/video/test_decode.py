"""OpenCV's frames and torchcodec's, in batches, and the record of those that arrived."""

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
from workloads.video import decode as decode_stage
from workloads.video import decode as decoding
from workloads.video.arrivals import Arrivals, luma_grids, read_numbers
from workloads.video.clip import CLIPS, FULL, GOP_FRAMES, Clip, clip_path
from workloads.video.colour import planes
from workloads.video.decode import COMPARED_BATCHES, SESSIONS, HostDecoder, TorchCodecDecoder, frames_agree
from workloads.video.needs import BATCH
from workloads.video.video_file import VideoError

CPU = torch.device("cpu")
CLIP = Clip(160, 96, 75)  # keyframes at 0, 30 and 60


@pytest.fixture(scope="module")
def clip(cache_dir: Path) -> Path:
    return clip_path(cache_dir, CLIP)


def numbers_of(bgr: np.ndarray) -> list[int]:
    if not len(bgr):
        return []
    return read_numbers(torch.from_numpy(np.stack([cv2.cvtColor(each, cv2.COLOR_BGR2GRAY) for each in bgr]))).tolist()


@pytest.mark.parametrize(("suffix", "loop"), [(".mp4", False), (".mkv", True), (".mov", True)])
def test_opencv_gives_every_frame_in_order(clip: Path, tmp_path: Path, suffix: str, loop: bool) -> None:
    """Each frame once and then nothing, or round and round."""
    decoder = HostDecoder(copied(clip, tmp_path / f"clip{suffix}"), loop=loop)
    read = [decoder.read(32) for _ in range(6)]
    assert read[0].shape == (32, 96, 160, 3)
    numbers = [number for frames in read for number in numbers_of(frames)]
    assert numbers == [number % 75 for number in range(192 if loop else 75)]
    decoder.close()


def test_a_clip_that_was_cut_short_gives_what_decodes(clip: Path) -> None:
    decoder = HostDecoder(cut_short(clip, clip.with_name("cut.mp4")))
    numbers = numbers_of(decoder.read(75))
    assert 30 < len(numbers) < 75
    assert numbers == list(range(len(numbers)))
    assert len(decoder.read(1)) == 0
    decoder.close()


def test_torchcodec_gives_every_frame_in_order(clip: Path) -> None:
    pytest.importorskip("torchcodec")
    decoder = TorchCodecDecoder(clip, CPU, loop=True)
    assert read_numbers(planes(decoder.read(160))[0]).tolist() == [number % 75 for number in range(160)]
    decoder.close()


def test_what_opencv_cannot_open_is_told_in_a_sentence(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2.VideoCapture, "isOpened", lambda capture: False, raising=False)
    with pytest.raises(VideoError, match=r"mp4 cannot be opened by OpenCV: convert it"):
        HostDecoder(clip)


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

"""Frames of OpenCV in batches, and the proof that compares decoders."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from gpugate.workload import Context, DisprovedError
from tests.support.copied_clips import copied, cut_short
from tests.support.frame_numbers import find_numbers
from workloads.video.arrivals import luma_grids, luma_of_bgr
from workloads.video.clip import BATCH, CLIPS, FULL, GOP_FRAMES, Clip, clip_path
from workloads.video.decode import (
    COMPARED_BATCHES,
    SESSIONS,
    Decoder,
    HostDecoder,
    HostPlanesDecoder,
    frames_agree,
)

CPU = torch.device("cpu")
CLIP = Clip(320, 192, 75)  # keyframes at 0, 30 and 60


@pytest.fixture(scope="module")
def clip(cache_dir: Path) -> Path:
    return clip_path(cache_dir, CLIP)


def numbers_of(bgr: np.ndarray, clip: Path) -> list[int]:
    return find_numbers(luma_of_bgr(bgr, "bt601"), luma_grids(clip))


@pytest.mark.parametrize(("suffix", "loop"), [(".mp4", False), (".mkv", True), (".mov", True)])
def test_opencv_gives_every_frame_in_order(clip: Path, tmp_path: Path, suffix: str, loop: bool) -> None:
    """Each frame once and then nothing, or round and round."""
    decoder = HostDecoder(copied(clip, tmp_path / f"clip{suffix}"), CPU, loop)
    read = [decoder.read(32) for _ in range(6)]
    assert read[0].shape == (32, 192, 320, 3)
    numbers = [number for frames in read for number in numbers_of(frames, clip)]
    assert numbers == [number % 75 for number in range(192 if loop else 75)]
    decoder.close()


@pytest.mark.parametrize("make", [HostDecoder, HostPlanesDecoder])
def test_a_closed_decoder_is_freed_at_once(clip: Path, make: type[Decoder]) -> None:
    """A session on a GPU must not wait for the garbage collector."""
    decoder = make(clip, CPU, True)
    decoder.read(4)
    decoder.close()
    alive = weakref.ref(decoder)
    gc.disable()
    try:
        del decoder
        assert alive() is None
    finally:
        gc.enable()


def test_a_clip_that_was_cut_short_gives_what_decodes(clip: Path) -> None:
    decoder = HostDecoder(cut_short(clip, clip.with_name("cut.mp4")))
    numbers = numbers_of(decoder.read(75), clip)
    assert 30 < len(numbers) < 75
    assert numbers == list(range(len(numbers)))
    assert len(numbers) <= decoder.info.frames - decoder.info.missing < decoder.info.frames == 75
    assert len(decoder.read(1)) == 0
    decoder.close()


def test_decoded_frames_of_every_session_are_compared(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session decodes each group of pictures of the clip: one that decodes its own wrongly is told."""
    assert SESSIONS * GOP_FRAMES < COMPARED_BATCHES * BATCH <= FULL.frames
    monkeypatch.setitem(CLIPS, "cpu", CLIP)  # type: ignore[misc]
    context = Context(torch.device("cpu"), 8, 0, cache_dir)
    assert frames_agree(HostPlanesDecoder, "h264", context) == "inf dB with OpenCV's over 10 frames"

    def darker_behind(*arguments: object) -> Decoder:
        decoder = HostPlanesDecoder(*arguments)  # type: ignore[arg-type]
        numbers, read = iter(range(100)), decoder.read
        monkeypatch.setattr(decoder, "read", lambda count: read(count) // (2 if next(numbers) >= 60 // BATCH else 1))
        return decoder

    with pytest.raises(DisprovedError, match=r"\d\.\d dB with OpenCV's over 10 frames: 45 dB are wanted"):
        frames_agree(darker_behind, "h264", context)

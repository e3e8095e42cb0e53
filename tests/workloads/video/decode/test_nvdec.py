"""Frames of the NVDEC decoder, with FFmpeg's decoder in place of the hardware."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support import fake_nvdec
from tests.support.fake_nvdec import FakeEvent, NoEngineError
from workloads.video.clip.clip import Clip, clip_path
from workloads.video.clip.colour import planes
from workloads.video.clip.frame_number import read_numbers
from workloads.video.clip.video_file import examine
from workloads.video.decode import nvdec
from workloads.video.decode.nvdec import ParallelDecoder

pytestmark = pytest.mark.usefixtures("no_thread_stays")
CLIP = Clip(160, 96, 75)  # keyframes at 0, 30 and 60
HEVC = dataclasses.replace(CLIP, codec="hevc")
DEVICE = torch.device("cpu", 0)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return fake_nvdec.installed(monkeypatch)


def numbers_of(nv12: torch.Tensor) -> list[int]:
    assert nv12.shape[1:] == (144, 160)
    return read_numbers(planes(nv12)[0]).tolist() if len(nv12) else []


@pytest.mark.parametrize(("clip", "sessions"), [(CLIP, 1), (CLIP, 3), (HEVC, 7)])
def test_several_sessions_give_every_frame_once_and_in_order(
    cache_dir: Path, library: SimpleNamespace, clip: Clip, sessions: int
) -> None:
    decoder = ParallelDecoder(examine(clip_path(cache_dir, clip)), DEVICE, sessions, loop=False)
    assert [number for _ in range(11) for number in numbers_of(decoder.read(8))] == [*range(75)]
    used = min(sessions, 3)
    assert decoder.stock_frames == (30 if used == 1 else 30 * used - 29)
    decoder.close()
    assert library.made == [{"gpu": 0, "codec": clip.codec, "device memory": True}] * min(sessions, 3)


def test_sessions_go_round_and_events_hand_every_frame_over(
    cache_dir: Path, library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvdec, "MOST_BUFFER_BYTES", 0)  # the fewest slots, which come round most often
    used: list[FakeEvent] = []

    def record() -> FakeEvent:
        used.append(FakeEvent())
        return used[-1]

    monkeypatch.setattr(library.caller, "record_event", record)
    decoder = ParallelDecoder(examine(clip_path(cache_dir, CLIP)), DEVICE, 2, loop=True)
    numbers = [number for _ in range(25) for number in numbers_of(decoder.read(8))]
    assert numbers == [number % 75 for number in range(200)]
    decoder.close()
    assert len(library.slots) == 2 * nvdec.LEAST_SLOTS
    assert 25 <= len(used) == len(library.caller.waited) <= 200, "once for frames that are ready at once"
    assert set(library.caller.waited) <= {slot.filled for slot in library.slots}
    assert {slot.used for slot in library.slots} <= set(used)


def test_a_missing_engine_is_told_in_a_sentence(
    cache_dir: Path, library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NoEngineError("CreateDecoder :\nError code : 100\n\n=== TROUBLESHOOTING STEPS ===\n1. Running in Docker?")

    info = examine(clip_path(cache_dir, CLIP))
    told = r"there is no NVDEC to decode with \(CreateDecoder : Error code : 100\): start the container with NVIDIA_"
    monkeypatch.setattr(library, "CreateDecoder", refuse)
    decoder = ParallelDecoder(info, DEVICE, 3, False)
    with pytest.raises(RuntimeError, match=told):
        decoder.read(8)
    decoder.close()

"""Calls of nvJPEG, with libjpeg in place of the hardware: the stand-in follows its pointers and checks its rules."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchvision")

from tests.support.patience import HANGS_S
from workloads.video.encode import nvjpeg
from workloads.video.encode.encoding import EncodingError
from workloads.video.encode.jpeg import encode_jpegs
from workloads.video.encode.pending_frames import PendingFrames

WIDTH, HEIGHT, QUALITY = 64, 48, 90


class FakeNvJpeg:
    """Its functions by name. A state is used by one thread at a time, from a picture to the bytes of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.made = 0
        self.failing: dict[str, int] = {}
        self.most_at_once = 0
        self.at_once = threading.Barrier(1)
        self._quality: dict[int, int] = {}
        self._coded: dict[int, Tensor] = {}
        self._busy: set[int] = set()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        arguments = nvjpeg.ARGUMENTS[name]

        def call(*given: Any) -> int:
            assert len(given) == len(arguments)
            assert given[-1] is not None, "a call without a stream is one on the default stream"
            self.calls.append(name)
            if name in self.failing:
                return self.failing[name]
            getattr(self, f"_{name}", lambda *_: None)(*given)
            return nvjpeg.SUCCESS

        return call

    def _make(self, place: Any) -> None:
        with self._lock:
            self.made += 1
            place._obj.value = self.made

    def _nvjpegCreateSimple(self, handle: Any) -> None:  # noqa: N802
        self._make(handle)

    def _nvjpegEncoderStateCreate(self, handle: Any, state: Any, stream: Any) -> None:  # noqa: N802
        self._make(state)

    def _nvjpegEncoderParamsCreate(self, handle: Any, settings: Any, stream: Any) -> None:  # noqa: N802
        self._make(settings)

    def _nvjpegEncoderParamsSetSamplingFactors(self, settings: Any, sampling: int, stream: Any) -> None:  # noqa: N802
        assert sampling == 0, "4:4:4"

    def _nvjpegEncoderParamsSetQuality(self, settings: Any, quality: int, stream: Any) -> None:  # noqa: N802
        self._quality[settings.value] = quality

    def _nvjpegEncodeImage(  # noqa: N802
        self, handle: Any, state: Any, settings: Any, image: Any, form: int, width: int, height: int, stream: Any
    ) -> None:
        with self._lock:
            assert state.value not in self._busy, "a state belongs to one thread"
            self._busy.add(state.value)
            self.most_at_once = max(self.most_at_once, len(self._busy))
        self.at_once.wait(HANGS_S)
        assert (form, width, height) == (3, WIDTH, HEIGHT)
        picture: nvjpeg.Image = image._obj
        assert list(picture.pitch[:3]) == [WIDTH] * 3
        planes = [ctypes.string_at(address, WIDTH * HEIGHT) for address in picture.channel[:3]]
        rgb = torch.frombuffer(bytearray(b"".join(planes)), dtype=torch.uint8).view(3, HEIGHT, WIDTH)
        (self._coded[state.value],) = encode_jpegs([rgb], self._quality[settings.value])

    def _nvjpegEncodeRetrieveBitstream(  # noqa: N802
        self, handle: Any, state: Any, data: int | None, length: Any, stream: Any
    ) -> None:
        coded = self._coded[state.value]
        if data is None:
            length._obj.value = len(coded)
            return
        assert length._obj.value >= len(coded)
        ctypes.memmove(data, coded.data_ptr(), len(coded))
        with self._lock:
            self._busy.remove(state.value)


class FakeStream:
    def __init__(self, device: torch.device, priority: int) -> None:
        assert priority < 0, "kernels of a network go first otherwise"
        self.cuda_stream = id(self)

    def synchronize(self) -> None:
        """Everything is over when its call returns."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvJpeg]:
    made = FakeNvJpeg()
    monkeypatch.setattr(nvjpeg, "library", lambda: made)
    monkeypatch.setattr(nvjpeg, "_page_locked", lambda length: torch.zeros(length, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    nvjpeg._idle_encoders.cache_clear()
    yield made
    nvjpeg._idle_encoders.cache_clear()


@pytest.fixture
def frames() -> Tensor:
    """uint8 [10, 3, 48, 64], no two alike."""
    return torch.randint(0, 256, (10, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def coded(frames: Tensor, quality: int = QUALITY) -> list[Tensor]:
    with ThreadPoolExecutor(nvjpeg.AT_ONCE) as threads:
        return [*nvjpeg.pictures(PendingFrames(frames), quality, threads)]


def test_pictures_come_in_the_order_of_their_frames(fake: FakeNvJpeg, frames: Tensor) -> None:
    for quality in (QUALITY, 30, QUALITY):
        found = coded(frames, quality)
        assert len(found) == len(frames)
        assert all(map(torch.equal, found, encode_jpegs([*frames], quality)))


def test_as_many_are_encoded_at_once_as_there_are_encoders(fake: FakeNvJpeg, frames: Tensor) -> None:
    fake.at_once = threading.Barrier(nvjpeg.AT_ONCE)  # nobody goes on before all of them are at it
    coded(frames[: 2 * nvjpeg.AT_ONCE])
    assert fake.most_at_once == nvjpeg.AT_ONCE
    made = fake.made
    coded(frames[: nvjpeg.AT_ONCE])
    assert fake.made == made == 3 * nvjpeg.AT_ONCE, "the next file has those of the one before"


@pytest.mark.parametrize("name", ["nvjpegCreateSimple", "nvjpegEncodeImage", "nvjpegEncodeRetrieveBitstream"])
def test_what_fails_is_told_and_does_no_harm_later(fake: FakeNvJpeg, frames: Tensor, name: str) -> None:
    fake.failing = {name: 6}
    with pytest.raises(EncodingError, match=rf"cpu encodes no JPEG \({name} returned 6\): use another encoder there"):
        coded(frames[:1])
    fake.failing = {}
    assert len(coded(frames)) == len(frames), "every encoder is there again"

"""A PyNvVideoCodec of FFmpeg, and a CUDA of the host on which nothing runs later than it is called."""

import ctypes
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import av
import pytest
import torch
from torch.utils.dlpack import to_dlpack

from workloads.video.decode import nvdec


class FakeEvent:
    def __init__(self) -> None:
        self.recorded = 0

    def record(self, stream: "FakeStream") -> None:
        self.recorded += 1


class FakeStream:
    def __init__(self, device: torch.device | None = None, priority: int = 0) -> None:
        self.priority = priority
        self.cuda_stream = id(self)
        self.waited: list[FakeEvent] = []

    def wait_event(self, event: FakeEvent) -> None:
        self.waited.append(event)

    def record_event(self) -> FakeEvent:
        return FakeEvent()

    def synchronize(self) -> None:
        """Everything is over when its call returns."""


class FakeFrame:
    """PyNvVideoCodec's DecodedFrame: a view of memory that its decoder will overwrite."""

    def __init__(self, nv12: torch.Tensor, timestamp: int, stream: int) -> None:
        self.nv12, self.timestamp, self._stream = nv12, timestamp, stream

    def __dlpack__(self, stream: int) -> object:
        assert stream == self._stream, "another stream than the decoder's would have to wait"
        return to_dlpack(self.nv12)


def nv12_of(frame: av.VideoFrame) -> torch.Tensor:
    return torch.from_numpy(frame.reformat(format="nv12").to_ndarray())


class FakeSession:
    """PyNvVideoCodec's PyNvDecoder: bytes at an address in, frames out that last until it is called again."""

    def __init__(self, codec: str, stream: int) -> None:
        self._codec, self._stream = av.CodecContext.create(codec, "r"), stream
        self._lent: list[FakeFrame] = []

    def Decode(self, packet: Any) -> list[FakeFrame]:  # noqa: N802
        for frame in self._lent:
            frame.nv12.zero_()
        if packet.bsl:
            coded = av.Packet(ctypes.string_at(packet.bsl_data, packet.bsl))
            coded.pts = packet.pts
            frames = self._codec.decode(coded)
        else:
            frames = self._codec.decode(None)
            self._codec.flush_buffers()
        self._lent = [FakeFrame(nv12_of(frame), frame.pts, self._stream) for frame in frames]
        return self._lent


class NoEngineError(Exception):
    """The library's error on a GPU without a decoding engine, with a paragraph of advice."""


def installed(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A PyNvVideoCodec of FFmpeg, and a CUDA of the host on which nothing runs later than it is called."""
    made: list[dict[str, Any]] = []

    def create(gpuid: int, codec: str, cudastream: int, usedevicememory: bool) -> FakeSession:
        made.append({"gpu": gpuid, "codec": codec, "device memory": usedevicememory})
        return FakeSession(codec, cudastream)

    fake = SimpleNamespace(
        cudaVideoCodec=SimpleNamespace(H264="h264", HEVC="hevc"),
        CreateDecoder=create,
        PacketData=lambda: SimpleNamespace(bsl=0, bsl_data=0, pts=0),
        PyNvVCException=NoEngineError,
        PyNvVCExceptionUnsupported=NoEngineError,
        made=made,
        caller=FakeStream(),
        slots=[],
    )
    slot = nvdec.FrameSlot

    def slot_with_events(frame: torch.Tensor) -> nvdec.FrameSlot:
        fake.slots.append(slot(frame, FakeEvent(), FakeEvent()))
        return fake.slots[-1]

    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", fake)
    monkeypatch.setattr(nvdec, "FrameSlot", slot_with_events)
    for name, stand_in in {
        "Stream": FakeStream,
        "set_device": lambda device: None,
        "set_stream": lambda stream: None,
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda device: fake.caller,
        "current_device": lambda: 3,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return fake
